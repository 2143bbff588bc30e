"""The stand-in's control socket: one JSON object a line each way.

Every request has "do"; every reply has "ok", and "error" when that is false. The loop never blocks
on a hung operation (hangs are sleeping tasks), so the socket answers however broken the mount is.
"""

from __future__ import annotations

import json
from typing import Any

import trio

from tests.standin.faults import Faults

LINE_BYTES_MAX = 1 << 16


def answer(faults: Faults, stop: trio.Event, request: dict[str, Any]) -> dict[str, Any]:
    """Perform one request; raises ValueError, KeyError or TypeError for a wrong one."""
    match request["do"]:
        case "latency":
            faults.per_op_s = float(request.get("per_op_s", faults.per_op_s))
            faults.per_read_s = float(request.get("per_read_s", faults.per_read_s))
            return {}
        case "fail" | "hang" | "delay" as kind:
            number = faults.add(
                kind,
                str(request["path"]),
                [str(op) for op in request.get("ops", [])],
                errno=int(request.get("errno", 0)),
                seconds=float(request.get("seconds", 0.0)),
                times=request.get("times"),
            )
            return {"rule": number}
        case "remove":
            faults.remove(int(request["rule"]))
            return {}
        case "heal":
            faults.heal()
            return {}
        case "counts":
            return {
                "operations": {op: dict(paths) for op, paths in faults.counts.items()},
                "read_bytes": dict(faults.read_bytes),
                "hanging": faults.hanging,
            }
        case "reset":
            faults.reset_counts()
            return {}
        case "stop":
            faults.heal()
            stop.set()
            return {}
        case other:
            raise ValueError(f"no such request: {other!r}")


async def converse(faults: Faults, stop: trio.Event, stream: trio.SocketStream) -> None:
    """Serve one client until it hangs up."""
    pending = b""
    async with stream:
        async for piece in stream:
            pending += piece
            if len(pending) > LINE_BYTES_MAX:
                return
            *lines, pending = pending.split(b"\n")
            for line in lines:
                try:
                    reply = {"ok": True, **answer(faults, stop, json.loads(line))}
                except (ValueError, KeyError, TypeError) as error:
                    reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                try:
                    await stream.send_all(json.dumps(reply).encode() + b"\n")
                except trio.BrokenResourceError:
                    return  # the client left before it was answered; nobody misses the reply


async def listen(
    faults: Faults,
    stop: trio.Event,
    path: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept clients at `path` for as long as the stand-in runs."""
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    with listening:
        await listening.bind(path)
        listening.listen(16)
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                client, _ = await listening.accept()
                nursery.start_soon(converse, faults, stop, trio.SocketStream(client))
