"""Determinism: one seed gives one trace, in every process, with every hash seed, with or without
the codec.
"""

import os
import subprocess
import sys

import pytest

from copperfs.lab.sim.codec_check import transcode
from copperfs.lab.sim.random_run import RandomRun

PROGRAM = """
import sys
from copperfs.lab.sim.random_run import RandomRun
run = RandomRun(int(sys.argv[1]))
run.world.trace.hashing = True
run.run()
print(run.world.trace.hexdigest())
"""


def digest_of(seed: int, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, str(seed)]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


@pytest.mark.parametrize("seed", [3, 4])
def test_hash_seeds_do_not_show(seed: int) -> None:
    assert digest_of(seed, "1") == digest_of(seed, "4242")


def test_seeds_differ() -> None:
    assert digest_of(3, "1") != digest_of(4, "1")


@pytest.mark.parametrize("seed", [3, 4, 20])
def test_the_fast_path_is_equal(seed: int) -> None:
    """If messages are given the same sizes without codec and bytes."""
    digests = []
    for exact in (True, False):
        run = RandomRun(seed, exact)
        network = run.world.network
        if exact:
            header_bytes = network.costs.header_bytes
            rest_bytes = network.payload_and_items_bytes
            network.transcode = lambda message, pieces, h=header_bytes, rest=rest_bytes: (
                transcode(message, pieces)[0],
                h + rest(message, pieces),
            )
        run.world.trace.hashing = True
        run.run()
        assert run.world.network.sent["GivePart"] > 0
        digests.append(run.world.trace.hexdigest())
    assert digests[0] == digests[1]
