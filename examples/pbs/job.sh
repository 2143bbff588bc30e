#!/bin/bash
#PBS -N copperfs
#PBS -l select=4:ncpus=8:mpiprocs=8
#PBS -l walltime=00:10:00
# Every rank of mpiexec starts "copperfs run", the first on each node the daemon. The ranks can speak
# MPI: copperfs does not, the nodes find each other in ~/.copperfs/rendezvous.
set -eu
cd "${PBS_O_WORKDIR:-.}"
ENV_DIR=${ENV_DIR:-$HOME/env}
SHARED=${SHARED:-$HOME}
APP=${APP:-app.py}
RANKS=$(wc -l <"$PBS_NODEFILE")

export VIRTUAL_ENV="$ENV_DIR" PATH="$ENV_DIR/bin:$PATH"
${MPIEXEC:-mpiexec} -n "$RANKS" ${COPPERFS:-copperfs} run --shared "$SHARED" -- python "$APP"
