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

mkdir -p "$(dirname "$MEET")"
srun ${SRUN_FLAGS:-} --overlap --ntasks-per-node=1 mkdir -p "$MNT"
srun ${SRUN_FLAGS:-} --overlap --ntasks-per-node=1 \
    ${COPPERFS:-copperfs} mount --foreground "$MNT" --rendezvous "$MEET" --shared "$SHARED" &
mounts=$!
# Ends the mounts, also if a step fails; the one above was step 0, so this is step 1.
trap 'scancel --signal=TERM "$SLURM_JOB_ID.1"; wait $mounts || true' EXIT

# Each node waits for its own mount, a minute at most.
srun ${SRUN_FLAGS:-} --overlap --ntasks-per-node=1 sh -c '
    for i in $(seq 600); do grep -q " $0 " /proc/self/mountinfo && exit; sleep 0.1; done; exit 1
' "$MNT"

export VIRTUAL_ENV="$MNT$ENV_DIR" PATH="$MNT$ENV_DIR/bin:$PATH"
srun ${SRUN_FLAGS:-} --overlap --ntasks-per-node=2 python "$APP" # cold
srun ${SRUN_FLAGS:-} --overlap --ntasks-per-node=2 python "$APP" # warm: nothing is read again
