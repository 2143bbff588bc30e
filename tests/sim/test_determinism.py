"""One seed gives one trace: in every process, with every hash seed, with the codec or without."""

import os
import subprocess
import sys

import pytest

from copperfs.sim.chaos import Chaos
from copperfs.sim.codec import transcode
from copperfs.sim.pieces import size_of

PROGRAM = """
import sys
from copperfs.sim.chaos import Chaos
chaos = Chaos(int(sys.argv[1]))
chaos.world.trace.hashing = True
chaos.run()
print(chaos.world.trace.hexdigest())
"""


def digest_of(seed: int, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, str(seed)]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


@pytest.mark.parametrize("seed", [3, 17])
def test_hash_seeds_do_not_show(seed: int) -> None:
    assert digest_of(seed, "1") == digest_of(seed, "4242")


def test_seeds_differ() -> None:
    assert digest_of(3, "1") != digest_of(17, "1")


@pytest.mark.parametrize("seed", [3, 17, 20])
def test_the_fast_path_is_equal(seed: int) -> None:
    """Without codec and bytes a run has the trace that it has with them, when only the sizes of
    messages are taken as the same."""
    digests = []
    for exact in (True, False):
        chaos = Chaos(seed, exact)
        network = chaos.world.network
        if exact:
            header_bytes = network.costs.header_bytes
            network.transcode = lambda message, pieces, header_bytes=header_bytes: (
                transcode(message, pieces)[0],
                header_bytes + size_of(pieces),
            )
        chaos.world.trace.hashing = True
        chaos.run()
        assert chaos.world.network.sent["GivePart"] > 0
        digests.append(chaos.world.trace.hexdigest())
    assert digests[0] == digests[1]
