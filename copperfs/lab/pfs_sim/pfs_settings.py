"""Settings of a stand-in; the defaults are a loaded Lustre's (docs/pfs-sim.md has the sources)."""

import json
import re
from dataclasses import asdict, dataclass

DURATION = re.compile(r"(\d+(?:\.\d*)?)\s*(us|ms|s|)", re.ASCII)
UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PfsSettings:
    directory: str
    mountpoints: tuple[str, ...]
    latency_s: float = 0.001
    servers: int = 4
    read_latency_s: float = 0.001
    bandwidth_bytes: int = 1_000_000_000
    data_servers: int = 1
    cache_s: float = 3900.0
    page_cache: bool = True
    permissions: bool = True
    allow_other: bool = False
    own_inodes: bool = False
    """Clients number files differently, as sshfs does."""
    control: str | None = None
    """The control socket's path; by default in the runtime directory."""
    tied: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "PfsSettings":
        values = json.loads(text)
        return cls(**{**values, "mountpoints": tuple(values["mountpoints"])})


def parse_duration(text: str) -> float:
    """Seconds from ``"1ms"``, ``"500us"`` or ``"0.02"``; ValueError otherwise."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 1ms, 500us or 0.02")
    return float(match[1]) * UNITS_S[match[2]]


def format_duration(seconds: float) -> str:
    if seconds and seconds < 1e-3:
        return f"{seconds * 1e6:g} us"
    return f"{seconds * 1e3:g} ms" if 0 < seconds < 1 else f"{seconds:g} s"
