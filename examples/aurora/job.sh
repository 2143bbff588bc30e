#!/bin/bash
#PBS -N copperfs
#PBS -A PROJECT
#PBS -q prod
#PBS -l select=512
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:flare
# For a machine like Aurora: PBS with PALS, Lustre at /lus/flare, Slingshot as hsn0 to hsn7, twelve
# GPU tiles on a node. Written from its user guide; not tried there.
set -eu
cd "${PBS_O_WORKDIR:-.}"
ENV_DIR=${ENV_DIR:-/lus/flare/projects/PROJECT/env}
SHARED=${SHARED:-/lus/flare}
APP=${APP:-train.py}
NODES=$(sort -u "$PBS_NODEFILE" | wc -l)
RANKS_PER_NODE=${RANKS_PER_NODE:-12}

export VIRTUAL_ENV="$ENV_DIR" PATH="$ENV_DIR/bin:$PATH"
${MPIEXEC:-mpiexec} -n $((NODES * RANKS_PER_NODE)) -ppn "$RANKS_PER_NODE" \
    ${COPPERFS:-copperfs} run --nodes "$NODES" --shared "$SHARED" --listen "${LISTEN:-hsn0}" \
    --memory "${MEMORY:-16GiB}" -- python "$APP"
