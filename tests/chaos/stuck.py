"""Stops a daemon's event loop while its other threads continue.

ptrace stops the main thread, which is trio's. ZeroMQ's thread still keeps the connections, and the
front's threads still answer from what is cached. So the daemon looks alive to every peer, and does
nothing. The tracer is a thread: when it ends, the daemon is detached and continues.
"""

from __future__ import annotations

import ctypes
import os
import threading

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
WITHIN_S = 10.0


class Stuck:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.ptrace.argtypes = [ctypes.c_long] * 4
        self._library.ptrace.restype = ctypes.c_long
        self._held = threading.Event()
        self._enough = threading.Event()
        self._failed: OSError | None = None
        # Only the thread that attached may detach.
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._thread.start()
        if not self._held.wait(WITHIN_S):
            self._enough.set()
            raise TimeoutError(f"process {pid} does not stop")
        if self._failed is not None:
            raise self._failed

    def release(self) -> None:
        self._enough.set()
        self._thread.join(WITHIN_S)
        if self._thread.is_alive():
            raise TimeoutError(f"process {self.pid} is not let go of")

    def _hold(self) -> None:
        try:
            self._ptrace(_SEIZE)
            self._ptrace(_INTERRUPT)
            os.waitpid(self.pid, _WALL)
        except OSError as error:
            self._failed = error
            return
        finally:
            self._held.set()
        self._enough.wait()
        try:
            self._ptrace(_DETACH)
        except ProcessLookupError:
            # It was killed meanwhile; until it is reaped here, its parent does not see its end.
            os.waitpid(self.pid, _WALL)

    def _ptrace(self, request: int) -> None:
        if self._library.ptrace(request, self.pid, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
