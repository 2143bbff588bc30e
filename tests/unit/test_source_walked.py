"""Source contract without ``openat2``, which the kernel does not know, or a filter of system calls
blocks. The source then walks every path name by name."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

# The filter holds for this process and all that it starts.
SCRIPT = """if True:
    import ctypes, os, platform, struct, sys
    import pytest
    SYS_OPENAT2 = 437
    LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
    ALLOW, ERRNO = 0x7FFF0000, 0x00050000
    PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
    refusal = int(sys.argv[1])
    code = b"".join(
        struct.pack("<HBBI", *each)
        for each in [
            (LOAD, 0, 0, 0),  # the number of the call
            (EQUAL, 0, 1, SYS_OPENAT2),
            (RETURN, 0, 0, ERRNO | refusal),
            (RETURN, 0, 0, ALLOW),
        ]
    )
    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    program = Program(len(code) // 8, code)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        sys.exit(77)
    assert libc.syscall(SYS_OPENAT2, -100, b"/", struct.pack("<QQQ", os.O_PATH, 0, 0), 24) == -1
    assert ctypes.get_errno() == refusal
    sys.exit(pytest.main(sys.argv[2:]))
"""
CONTRACT = Path(__file__).with_name("test_source_contract.py")


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EPERM], ids=errno.errorcode.get)
def test_the_contract_holds_where_openat2_is_refused(
    refusal: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("w")  # short: a socket's path is no longer than 107 bytes
    done = subprocess.run(
        [
            sys.executable, "-c", SCRIPT, str(refusal), CONTRACT, "-q", "-x",
            "-p", "no:cacheprovider", f"--basetemp={base / 'w'}",
        ],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("needs filters of system calls (seccomp)")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
