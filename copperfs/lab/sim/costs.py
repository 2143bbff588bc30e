"""Costs: how long operations take on the machine that a run models.

They are a preset, or a file that ``copperfs sim calibrate`` wrote. The sources of the presets:

* the data rate of Slingshot is that of one port in one direction, 200 Gbit/s (De Sensi and others,
  "An In-Depth Analysis of the Slingshot Interconnect", SC20, arXiv:2008.08886); its daemons speak
  TCP, whose stack is most of the latency here: 10 us one way are assumed, where the paper has about
  2 us for MPI;
* 10 GbE carries 1.25 GB/s by definition; 25 us one way through two stacks and a switch are assumed;
* the filesystem of ``slingshot`` is the one of the Copper paper (section V: 40 metadata targets,
  650 GB/s); the time of an operation is from the public figures for Lustre (0.5 ms per stat for one
  client thread, 400,000 stats a second at best in aggregate);
* that of ``10gbe`` is a busy one of a small cluster: 1 ms an operation on 4 servers, as in ``make
  bench``'s stand-in;
* ``sim calibrate`` measured the daemon's time for a message, a byte and a miss on the machine that
  this was built on, with CURVE (docs/simulator.md); both presets use these.
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
    """Costs that an application notices of its own node."""

    miss_s: float = 300e-6
    """From a request that the front cannot answer to the core, and from its answer back."""
    miss_cpu_s: float = 230e-6
    """Computing time of the daemon within that; it does nothing else meanwhile."""
    byte_s: float = 0.0
    """For each byte that the application then reads, beyond the cost of reading it directly."""


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
    """A preset, or the costs in the file of this name. SimulationError if there is neither."""
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
    """A dataclass of numbers; one that *found* lacks keeps its default."""
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
