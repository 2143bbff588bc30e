#!/bin/bash
#SBATCH --account=PROJECT
#SBATCH --job-name=copperfs
#SBATCH --nodes=512
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --time=01:00:00
# For a machine like Frontier: Slurm, Lustre at /lustre/orion, Slingshot as hsn0 to hsn3, eight GPUs
# and half a terabyte of memory on a node. Written from its user guide; not tried there.
set -eu
ENV_DIR=${ENV_DIR:-/lustre/orion/$SLURM_JOB_ACCOUNT/proj-shared/env}
SHARED=${SHARED:-/lustre/orion}
APP=${APP:-train.py}

export VIRTUAL_ENV="$ENV_DIR" PATH="$ENV_DIR/bin:$PATH"
# Home directories are shared there, and fit for a few small files of 512 nodes.
srun ${SRUN_FLAGS:-} --kill-on-bad-exit=1 \
    ${COPPERFS:-copperfs} run --shared "$SHARED" --listen "${LISTEN:-hsn0}" --memory "${MEMORY:-16GiB}" \
    -- python "$APP"
