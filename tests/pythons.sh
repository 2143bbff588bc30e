#!/usr/bin/env bash
# Runs the test suite under each of some versions of Python, in an environment of its own each.
#
#   tests/pythons.sh VERSION...     for instance 3.12 3.13
#
# A version is looked for as pythonVERSION on the path, and among those of pyenv. One that is not here is
# left out, and said to be; none at all is an error. ARGS goes to pytest. All are run, also after one that
# failed.
set -uo pipefail
cd "$(dirname "$0")/.."

runs() { "$1" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$2')" 2>/dev/null; }

find_python() {
    local each
    for each in "$(command -v "python$1")" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if [ -x "$each" ] && runs "$each" "$1"; then
            echo "$each"
            return
        fi
    done
}

found=0
failed=()
for version in "$@"; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "pythons: there is no Python $version here, so it is left out"
        continue
    fi
    found=$((found + 1))
    echo "pythons: $("$python" -V), in .venv-$version"
    make --no-print-directory test PYTHON="$python" VENV=".venv-$version" || failed+=("$version")
done
[ $found -gt 0 ] || failed+=("none of $* is here")
[ ${#failed[@]} -eq 0 ] || echo "pythons: failed: ${failed[*]}" >&2
exit ${#failed[@]}
