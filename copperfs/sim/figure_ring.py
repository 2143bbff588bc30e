"""What becomes of a lost node's files: Figure 6(b) of the FT-Cache paper, with our own placements.

A trial takes one node away and counts who receives its files, and how many each. Nothing is worked
out beside the code that daemons run: every file is placed by ``owner``, and those of the lost node
again without it. Only they move (``tests/unit/test_placement.py`` holds placements to that), so
all files are placed once for a ring, and a trial costs one node's files.

One ring is good for many trials, since what one lost node's points have to do with another's is
next to nothing; but a ring can be uneven as a whole, so several are drawn (``rings``), by names of
their nodes. Everything follows from the seed.

``expected_receivers`` says what there should be without any simulation; see there.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import fmean, pstdev

from copperfs.core.placement import Placement
from copperfs.core.rendezvous_hashing import RendezvousHashing
from copperfs.core.ring import Ring
from copperfs.types import NodeId


@dataclass(frozen=True, slots=True)
class Experiment:
    """The defaults are the paper's; it does not say which numbers of virtual nodes."""

    nodes: int = 1024
    files: int = 524_288
    trials: int = 500
    rings: int = 10
    vnodes: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000)
    seed: int = 1
    rendezvous: bool = False
    """Rendezvous hashing as well, on as many sets of nodes as there are rings."""

    @property
    def steps(self) -> int:
        """How often ``advance`` is called."""
        return self.rings * (len(self.vnodes) + self.rendezvous)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of all trials with one placement. Deviations are of the whole population."""

    vnodes: int | None
    """None for rendezvous hashing."""
    trials: int
    expected: float
    """``expected_receivers``."""
    receivers: float
    receivers_deviation: float
    """From trial to trial."""
    receivers_least: int
    receivers_most: int
    files: float
    """That a receiver gets: of all receivers in all trials."""
    files_deviation: float
    files_most: float
    """That the busiest receiver of a trial gets: the mean of the trials."""
    imbalance: float
    """While nobody is gone: the most files of a node to the mean; the mean of the rings."""


def run(experiment: Experiment, advance: Callable[[], None] = lambda: None) -> list[Outcome]:
    """One outcome for each number of virtual nodes; *advance* is called after every step."""
    kinds: list[int | None] = [*experiment.vnodes]
    if experiment.rendezvous:
        kinds.append(None)
    return [_outcome(experiment, vnodes, advance) for vnodes in kinds]


def expected_receivers(nodes: int, files: int, vnodes: int | None) -> float:
    """How many nodes receive something, as it should be of any good hash.

    The lost node had ``files / nodes`` files on ``vnodes`` arcs, ``m`` of them on each in the mean.
    The lengths of arcs are distributed exponentially, so how many files one has is geometric, and
    none with probability ``1 / (1 + m)``. Every other arc goes to one of the other nodes, each
    equally likely. For rendezvous hashing every file does: that is the ring with arcs without
    number."""
    mean = files / nodes
    moved = mean if vnodes is None else mean / (1 + mean / vnodes)
    return (nodes - 1) * (1 - exp(-moved / (nodes - 1)))


@dataclass(frozen=True, slots=True)
class _Trial:
    received: tuple[int, ...]
    """The files that each receiver gets."""


def _outcome(experiment: Experiment, vnodes: int | None, advance: Callable[[], None]) -> Outcome:
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


def _share(experiment: Experiment, ring: int) -> int:
    """How many of the trials are on this ring."""
    return (experiment.trials + ring) // experiment.rings


def _placement(experiment: Experiment, ring: int, vnodes: int | None) -> Placement:
    names = [f"s{experiment.seed}r{ring}n{node}" for node in range(experiment.nodes)]
    return RendezvousHashing(names) if vnodes is None else Ring(names, vnodes=vnodes)


def _paths(files: int) -> Iterator[bytes]:
    return (b"cosmoUniverse/train/univ_%06d.tfrecord" % number for number in range(files))


def _held(placement: Placement, experiment: Experiment) -> Sequence[list[bytes]]:
    """The files of each node while all are there."""
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
