#!/bin/bash
#SBATCH --job-name=copperfs-pytorch
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:30:00
# A training that reads its dataset through the data tier: all files below DATA_DIR are cut into
# chunks, each of which one node reads from the filesystem, once, and keeps in its memory and on
# its NVMe for all (docs/tier.md). PyTorch itself is read through the mount as well.
set -eu
ENV_DIR=${ENV_DIR:-$HOME/env}
SHARED=${SHARED:-$HOME} # or several, with a space between them
DATA_DIR=${DATA_DIR:-$HOME/dataset}
TIER_DIR=${TIER_DIR:-/tmp/copperfs-tier} # on the node's NVMe
TIER_SIZE=${TIER_SIZE:-200GiB}
APP=${APP:-train.py}

export VIRTUAL_ENV="$ENV_DIR" PATH="$ENV_DIR/bin:$PATH"
${LAUNCH:-srun ${SRUN_FLAGS:-}} ${COPPERFS:-copperfs} run --shared $SHARED \
    --ring "$DATA_DIR" --tier-dir "$TIER_DIR" --tier-size "$TIER_SIZE" \
    --env "DATA_DIR=$DATA_DIR" -- python "$APP"
