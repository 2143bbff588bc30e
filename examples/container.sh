#!/bin/sh
# A container that reads an environment through a mount made outside: the mount is there before the
# container is, and is bound into it like any directory. The container needs neither copperfs nor
# /dev/fuse. A container that maps several users cannot be made in a namespace of one user, so the
# files are not shown in place.
set -eu
ENV_DIR=${ENV_DIR:-$HOME/env}
SHARED=${SHARED:-$HOME}
APP=${APP:-app.py}
IMAGE=${IMAGE:-app.sif}
export APP IMAGE SHARED

${COPPERFS:-copperfs} run --in-place never --shared "$SHARED" --env "PYTHONPATH=$ENV_DIR" -- sh -c '
    set -eu
    if command -v apptainer >/dev/null; then
        exec apptainer exec --bind "$COPPERFS_MOUNTPOINT" --env "PYTHONPATH=$PYTHONPATH" \
            "$IMAGE" python3 "$APP"
    elif command -v podman >/dev/null; then
        exec podman run --rm --volume "$COPPERFS_MOUNTPOINT:$COPPERFS_MOUNTPOINT:ro" \
            --env "PYTHONPATH=$PYTHONPATH" "$IMAGE" python3 "$APP"
    elif command -v bwrap >/dev/null; then # no image: the system of this node, read-only
        exec bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --unshare-pid \
            --ro-bind "$COPPERFS_MOUNTPOINT" "$COPPERFS_MOUNTPOINT" --ro-bind "$APP" "$APP" \
            python3 "$APP"
    fi
    echo "container.sh: there is no apptainer, podman or bwrap" >&2
    exit 1
'
