#!/bin/sh
# A program with a virtual environment on a shared filesystem: what it imports is read through the
# mount, and so is the environment's own python. Nothing has to be activated.
set -eu
ENV_DIR=${ENV_DIR:-$HOME/env}
SHARED=${SHARED:-$HOME}
APP=${APP:-app.py}

VIRTUAL_ENV=$ENV_DIR PATH=$ENV_DIR/bin:$PATH \
    ${COPPERFS:-copperfs} run --shared "$SHARED" -- python "$APP"
