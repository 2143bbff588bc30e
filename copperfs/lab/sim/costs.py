"""Costs: how long operations take on the machine that a run models.

They are a preset, or a file that ``copperfs sim calibrate`` wrote. docs/simulator.md has the
sources of the presets.
"""

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from copperfs.lab.sim.sim_disk import DiskCosts
from copperfs.lab.sim.sim_source import SourceCosts
from copperfs.lab.sim.virtual_network import NetworkCosts
from copperfs.model.errors import SimulationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeCosts:
    miss_s: float = 300e-6
    """From a request that the front cannot answer to the node, and back."""
    miss_cpu_s: float = 230e-6
    """Computing time of the daemon within that."""
    byte_s: float = 0.0
    """For each byte that the application then reads, beyond a direct read."""


@dataclass(frozen=True, slots=True)
class Costs:
    name: str = "10gbe"
    network: NetworkCosts = field(default_factory=NetworkCosts)
    source: SourceCosts = field(default_factory=SourceCosts)
    disk: DiskCosts = field(default_factory=DiskCosts)
    node: NodeCosts = field(default_factory=NodeCosts)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


_DAEMON = NetworkCosts(send_s=80e-6, receive_s=120e-6, send_byte_s=0.9e-9, receive_byte_s=1.6e-9)
PRESETS = {
    "10gbe": Costs(
        "10gbe",
        replace(_DAEMON, latency_s=25e-6, bytes_per_s=1.25e9),
        SourceCosts(servers=4, operation_s=1e-3, latency_s=200e-6, bytes_per_s=1e9),
    ),
    "slingshot": Costs(
        "slingshot",
        replace(_DAEMON, latency_s=10e-6, bytes_per_s=25e9),
        SourceCosts(servers=40, operation_s=100e-6, latency_s=400e-6, bytes_per_s=650e9),
    ),
}


def costs_of(name: str) -> Costs:
    """A preset, or a file's costs. SimulationError if there is neither."""
    preset = PRESETS.get(name)
    if preset is not None:
        return preset
    try:
        with open(name, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        presets = " or ".join(sorted(PRESETS))
        raise SimulationError(
            f"--costs {name}: {error.strerror}; give {presets}, or a file of sim calibrate"
        ) from None
    except ValueError:
        raise SimulationError(f"--costs {name} is not JSON") from None
    return _parsed(Costs, found, name)


def _parsed(kind: type[T], found: object, where: str) -> T:
    """Missing numbers keep their defaults."""
    if not isinstance(found, dict):
        raise SimulationError(f"{where} is not an object")
    assert is_dataclass(kind)
    known = {each.name: each for each in fields(kind)}
    values: dict[str, Any] = {}
    default = kind()
    for key, value in found.items():
        if key not in known:
            raise SimulationError(f"{where} has {key!r}; there are {', '.join(known)}")
        before = getattr(default, key)
        if is_dataclass(before):
            values[key] = _parsed(type(before), value, f"{where}: {key}")
        elif isinstance(before, str):
            values[key] = str(value)
        elif not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise SimulationError(f"{where}: {key} is {value!r}; give a number, 0 or more")
        else:
            values[key] = type(before)(value)
    return kind(**values)
