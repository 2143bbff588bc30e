"""Runs the user's command as if this process were not there.

Signals to this process are passed on, except the terminal's, which the command gets as well. If
this process is killed, the kernel kills the command. Descriptors stay open, since ranks of MPICH
reach their launcher through one.

A rank outside MPI does not notice that its launcher and its job are lost, and Open MPI does not end
it. So this process checks whether its parent is still the same; ``PR_SET_PDEATHSIG`` would also
come when only the parent's thread ended.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit codes of shells

_PASSED_ON = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH),
)
_PR_SET_PDEATHSIG = 1
_SI_KERNEL = 0x80
PARENT_EVERY_S = 1.0
ENDS_WITHIN_S = 5.0


def run_command(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    with_parent: bool = False,
    enter: Callable[[], None] | None = None,
    begun: Callable[[], None] | None = None,
) -> int:
    """Returns the exit code, or 128 and the signal's number; OSError if it cannot be started.
    *with_parent*: end the command when this process's parent ends. *enter* leads the command's
    process into a namespace; *begun* is called once it is there."""
    grandparent = os.getppid()
    libc = ctypes.CDLL(None)
    parent = os.getpid()
    waited_for = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)

    def in_child() -> None:
        if enter is not None:
            enter()
        # After that: a change of rights would take it back.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # this process was killed before prctl
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # Some launchers ignore it, and then the kernel would keep no exit code.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        # This process has one thread, so code between fork and exec is safe.
        child = subprocess.Popen(
            command,
            env=dict(environ),
            close_fds=False,
            preexec_fn=in_child,  # noqa: PLW1509
        )
        if begun is not None:
            begun()
        lost_at = None
        while child.poll() is None:
            said = signal.sigtimedwait(waited_for, PARENT_EVERY_S)
            if said is None:
                if with_parent and lost_at is None and os.getppid() != grandparent:
                    lost_at = time.monotonic()
                    child.terminate()
                elif lost_at is not None and time.monotonic() > lost_at + ENDS_WITHIN_S:
                    child.kill()
            elif said.si_signo != signal.SIGCHLD and said.si_code != _SI_KERNEL:
                child.send_signal(said.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before - set(_PASSED_ON))
    code = child.returncode
    return code if code >= 0 else 128 - code
