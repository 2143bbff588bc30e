#!/bin/sh
# The same with an environment of conda. "conda activate" itself reads hundreds of files, so it is
# left out: three variables are what most environments need of it.
set -eu
ENV_DIR=${ENV_DIR:-$HOME/miniforge3/envs/mine}
SHARED=${SHARED:-$HOME}
APP=${APP:-app.py}

export CONDA_PREFIX="$ENV_DIR" PATH="$ENV_DIR/bin:$PATH"
export LD_LIBRARY_PATH="$ENV_DIR/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
${COPPERFS:-copperfs} run --shared "$SHARED" -- python "$APP"
