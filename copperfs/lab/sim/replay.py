"""Replay: runs a scenario or a seed again, for its trace."""

from dataclasses import dataclass
from pathlib import Path

from copperfs.lab.sim.random_run import RandomRun
from copperfs.lab.sim.scenario import Scenario, needs
from copperfs.lab.sim.world import World
from copperfs.model.errors import SimulationError

LINES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Replayed:
    world: World | None
    """None if it could not begin."""
    fault: str | None
    """The broken promise."""
    environment: str | None = None

    def lines(self, node: int | None, last: int) -> list[str]:
        """The end of the trace, of one node or of all."""
        if self.world is None or not last:
            return []
        return self.world.trace.lines(node)[-last:]


def replay_seed(seed: int) -> Replayed:
    run = RandomRun(seed)
    run.world.trace.keep(LINES_MAX)
    fault = None
    try:
        run.run()
    except AssertionError as error:
        fault = repr(error)
    return Replayed(run.world, fault, str(run.environment))


def replay_scenario(file: Path) -> Replayed:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SimulationError(f"{file} cannot be read: {error}") from None
    if needs(text):
        return Replayed(None, f"it needs {', '.join(needs(text))}")
    scenario = Scenario()
    try:
        scenario.tell(text)
    except AssertionError as error:
        return Replayed(scenario.world, repr(error))
    except ValueError as error:
        raise SimulationError(f"{file}: {error}") from None
    return Replayed(scenario.world, None)
