#!/bin/bash
#SBATCH --job-name=copperfs
#SBATCH --nodes=4
#SBATCH --time=00:10:00
# Mounts that several steps share. Where Slurm tracks processes by cgroup, daemons end with the step
# that started them, so that step stays in the background for as long as the job needs it.
set -eu
ENV_DIR=${ENV_DIR:-$HOME/env}
SHARED=${SHARED:-$HOME}
APP=${APP:-app.py}
MNT=${MNT:-/tmp/copper_mnt-$SLURM_JOB_ID}
MEET=${MEET:-$HOME/.copperfs/rendezvous}

# A process on each node, and beside what else runs there.
each="srun ${SRUN_FLAGS:-} --overlap --ntasks=$SLURM_NNODES --ntasks-per-node=1"

mkdir -p "$(dirname "$MEET")"
$each mkdir -p "$MNT"
$each ${COPPERFS:-copperfs} mount --foreground "$MNT" --rendezvous "$MEET" --shared "$SHARED" &
mounts=$!
# Also if a step fails. The step of the mounts ends with them.
trap '$each ${COPPERFS:-copperfs} umount --lazy "$MNT"; wait $mounts || true' EXIT

# Each node waits for its own mount, a minute at most.
$each sh -c '
    for i in $(seq 600); do grep -q " $0 " /proc/self/mountinfo && exit; sleep 0.1; done; exit 1
' "$MNT"

export VIRTUAL_ENV="$MNT$ENV_DIR" PATH="$MNT$ENV_DIR/bin:$PATH"
srun ${SRUN_FLAGS:-} --overlap --ntasks-per-node=2 python "$APP" # cold
srun ${SRUN_FLAGS:-} --overlap --ntasks-per-node=2 python "$APP" # warm: nothing is read again
