#!/bin/bash
#SBATCH --job-name=copperfs
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --time=00:10:00
# Every task starts "copperfs run", the first on each node the daemon; the last to go ends it. The
# nodes find each other in ~/.copperfs/rendezvous, which has to be on a filesystem that they share.
set -eu
ENV_DIR=${ENV_DIR:-$HOME/env}
SHARED=${SHARED:-$HOME}
APP=${APP:-app.py}

export VIRTUAL_ENV="$ENV_DIR" PATH="$ENV_DIR/bin:$PATH"
srun ${SRUN_FLAGS:-} ${COPPERFS:-copperfs} run --shared "$SHARED" -- python "$APP"
