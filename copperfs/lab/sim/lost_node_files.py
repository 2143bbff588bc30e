"""Where a lost node's files go: Figure 6(b) of the FT-Cache paper, with our own placements.

A trial removes one node, and counts the nodes that receive its files and how many each gets. Only
the lost node's files move, so all files are placed once for a ring, which serves many trials. A
ring can be uneven as a whole, so several are drawn (``rings``).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import fmean, pstdev

from copperfs.lab.sim.rendezvous_hashing import RendezvousHashing
from copperfs.model.types import NodeId
from copperfs.node.routing.hash_ring import Ring
from copperfs.node.routing.placement_order import Placement


@dataclass(frozen=True, slots=True)
class RingExperiment:
    """The defaults are the paper's, which does not give its numbers of virtual nodes."""

    nodes: int = 1024
    files: int = 524_288
    trials: int = 500
    rings: int = 10
    vnodes: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000)
    seed: int = 1
    rendezvous: bool = False
    """Rendezvous hashing as well, on one set of nodes for each ring."""

    @property
    def steps(self) -> int:
        return self.rings * (len(self.vnodes) + self.rendezvous)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Deviations are of the whole population."""

    vnodes: int | None
    """None for rendezvous hashing."""
    trials: int
    expected: float
    receivers: float
    receivers_deviation: float
    receivers_least: int
    receivers_most: int
    files: float
    """A receiver's files, over all receivers and trials."""
    files_deviation: float
    files_most: float
    """The mean over the trials."""
    imbalance: float
    """Before the loss: a node's most files divided by the mean; the mean over the rings."""


def run(experiment: RingExperiment, advance: Callable[[], None] = lambda: None) -> list[Outcome]:
    """One outcome for each number of virtual nodes; *advance* follows every step."""
    kinds: list[int | None] = [*experiment.vnodes]
    if experiment.rendezvous:
        kinds.append(None)
    return [_outcome(experiment, vnodes, advance) for vnodes in kinds]


def expected_receivers(nodes: int, files: int, vnodes: int | None) -> float:
    """How many nodes receive a file, for any good hash.

    The lost node had ``files / nodes`` files on ``vnodes`` arcs, a mean of ``m`` on each. Lengths
    of arcs are distributed exponentially, so an arc's number of files is geometric, and zero with
    probability ``1 / (1 + m)``. Every other arc goes to one of the other nodes, each equally
    likely. Rendezvous hashing is the limit of infinitely many arcs: every file goes by itself.
    """
    mean = files / nodes
    moved = mean if vnodes is None else mean / (1 + mean / vnodes)
    return (nodes - 1) * (1 - exp(-moved / (nodes - 1)))


@dataclass(frozen=True, slots=True)
class _Trial:
    received: tuple[int, ...]


def _outcome(
    experiment: RingExperiment, vnodes: int | None, advance: Callable[[], None]
) -> Outcome:
    trials: list[_Trial] = []
    imbalances: list[float] = []
    for ring in range(experiment.rings):
        placement = _placement(experiment, ring, vnodes)
        held = _held(placement, experiment)
        imbalances.append(max(map(len, held)) * experiment.nodes / experiment.files)
        # The same nodes are lost whatever the placement.
        random = Random(f"{experiment.seed} {ring}")
        lost = random.sample(range(experiment.nodes), _share(experiment, ring))
        trials += [_trial(placement, NodeId(each), held[each]) for each in lost]
        advance()
    counts = [len(trial.received) for trial in trials]
    each = [files for trial in trials for files in trial.received]
    return Outcome(
        vnodes=vnodes,
        trials=len(trials),
        expected=expected_receivers(experiment.nodes, experiment.files, vnodes),
        receivers=fmean(counts),
        receivers_deviation=pstdev(counts),
        receivers_least=min(counts),
        receivers_most=max(counts),
        files=fmean(each or [0]),
        files_deviation=pstdev(each or [0]),
        files_most=fmean(max(trial.received, default=0) for trial in trials),
        imbalance=fmean(imbalances),
    )


def _share(experiment: RingExperiment, ring: int) -> int:
    return (experiment.trials + ring) // experiment.rings


def _placement(experiment: RingExperiment, ring: int, vnodes: int | None) -> Placement:
    names = [f"s{experiment.seed}r{ring}n{node}" for node in range(experiment.nodes)]
    return RendezvousHashing(names) if vnodes is None else Ring(names, vnodes=vnodes)


def _paths(files: int) -> Iterator[bytes]:
    return (b"cosmoUniverse/train/univ_%06d.tfrecord" % number for number in range(files))


def _held(placement: Placement, experiment: RingExperiment) -> Sequence[list[bytes]]:
    held: list[list[bytes]] = [[] for _ in range(experiment.nodes)]
    for path in _paths(experiment.files):
        owner = placement.owner(path)
        assert owner is not None
        held[owner].append(path)
    return held


def _trial(placement: Placement, lost: NodeId, held: list[bytes]) -> _Trial:
    gone = {lost}
    received = Counter(placement.owner(path, gone) for path in held)
    return _Trial(tuple(received.values()))
