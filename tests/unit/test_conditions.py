"""Conditions of nodes, drawn from a number or given; the lab's clock and its name server."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from copperfs.lab.local_cluster import surroundings
from copperfs.lab.local_cluster.cluster_state import ClusterNode
from copperfs.lab.local_cluster.conditions import (
    DESCRIPTORS_FEW,
    RESOLVERS,
    SKEW_MAX_S,
    USUAL,
    Conditions,
    draw_conditions,
    parse_conditions,
)
from copperfs.lab.local_cluster.name_server import SLOW_S, reply_to
from copperfs.model.errors import ClusterError

ADDRESSES = {"node1.copperfs.test": "10.77.0.2"}


def test_the_same_number_gives_the_same_conditions_and_another_one_others() -> None:
    drawn = [draw_conditions(number, 16) for number in range(40)]
    assert [draw_conditions(number, 16) for number in range(40)] == drawn
    assert len({tuple(each) for each in drawn}) == 40


def test_everything_that_can_differ_does() -> None:
    drawn = [each for number in range(40) for each in draw_conditions(number, 16)]
    assert min(each.skew for each in drawn) < -0.9 * SKEW_MAX_S
    assert max(each.skew for each in drawn) > 0.9 * SKEW_MAX_S
    assert {each.descriptors for each in drawn} == {None, DESCRIPTORS_FEW}
    assert {each.memory for each in drawn} == {0.5, 1.0}
    assert {each.resolver for each in drawn} == {None, *RESOLVERS}
    assert len({each.start for each in drawn}) > 50
    for number in range(40):
        named = {each.resolver is None for each in draw_conditions(number, 16)}
        assert len(named) == 1, "all resolve names, or none does"


def test_single_nodes_are_given_what_they_are_to_have() -> None:
    given = parse_conditions(["1:skew=-1.5,descriptors=128", "node2:memory=0.25"], [USUAL] * 3)
    assert given == [USUAL, Conditions(skew=-1.5, descriptors=128), Conditions(memory=0.25)]
    assert [str(each) for each in given] == ["as usual", "skew=-1.5,descriptors=128", "memory=0.25"]
    again = parse_conditions(
        [f"{index}:{each}" for index, each in enumerate(given) if index], given
    )
    assert again == given


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("3:skew=1", "about no node"),
        ("skew=1", "about no node"),
        ("1:colour=red", "is no condition; there are skew, descriptors"),
        ("1:skew=fast", "'fast' is no value of skew"),
        ("1:skew=nan", "a day is the most"),
        ("1:descriptors=3", "give 64 or more"),
        ("1:memory=2", "is no share"),
        ("1:resolver=wrong", "quick, slow, failing"),
        ("1:start=-1", "give 0 to 60"),
    ],
)
def test_what_no_node_can_be_is_said(word: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        parse_conditions([word], [USUAL] * 3)


# ---- the clock -----------------------------------------------------------------------------------

CLOCKS = """if True:
    import ctypes, threading, time
    began = time.monotonic()
    lock = threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=0.05)
    libc = ctypes.CDLL(None)
    condition, mutex = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    # a deadline by the clock that it sees, in the past for the one that it does not
    at = time.time() + 0.2
    until = (ctypes.c_long * 2)(int(at), int(at % 1 * 1e9))
    libc.pthread_mutex_lock(mutex)
    libc.pthread_cond_timedwait(condition, mutex, until)
    print(time.time(), libc.time(None), time.monotonic() - began)
"""


@pytest.mark.parametrize("skew_s", [-1.75, 3600.5])
def test_the_lab_shifts_the_wall_clock_of_one_process_and_no_deadline(skew_s: float) -> None:
    node = ClusterNode("node0", "/nowhere", conditions=Conditions(skew=skew_s))
    environ = surroundings.environment(node, os.environ)
    before = time.time()
    done = subprocess.run(
        [sys.executable, "-c", CLOCKS], env=environ, capture_output=True, text=True, check=True
    )
    after = time.time()
    wall, seconds, took = map(float, done.stdout.split())
    assert before + skew_s < wall < after + skew_s
    assert before + skew_s - 1 < seconds < after + skew_s
    assert 0.25 <= took < after - before
    assert surroundings.environment(ClusterNode("node1", "/nowhere"), {"A": "b"}) == {"A": "b"}


# ---- the name server -----------------------------------------------------------------------------


def question(name: str, kind: int = 1, number: int = 77) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)


def code_of(reply: bytes | None) -> tuple[int, int, int]:
    assert reply is not None
    number, flags, _, answers, _, _ = struct.unpack_from(">6H", reply)
    return number, flags & 0xF, answers


def test_a_name_is_answered_with_its_address_and_others_are_not_known() -> None:
    known = reply_to(question("Node1.Copperfs.test"), ADDRESSES)
    assert known is not None
    assert code_of(known) == (77, 0, 1)
    assert known.endswith(socket.inet_aton("10.77.0.2"))
    assert code_of(reply_to(question("node1.copperfs.test", kind=28), ADDRESSES)) == (77, 0, 0)
    assert code_of(reply_to(question("node2.copperfs.test"), ADDRESSES)) == (77, 3, 0)
    failed = reply_to(question("node1.copperfs.test"), ADDRESSES, fails=True)
    assert code_of(failed) == (77, 2, 0)


def test_what_is_no_question_is_left_unanswered() -> None:
    whole = question("node1.copperfs.test")
    numbers = random.Random(1)
    for size in range(len(whole)):
        assert reply_to(whole[:size], ADDRESSES) is None
    for _ in range(2000):
        reply_to(numbers.randbytes(numbers.randrange(60)), ADDRESSES)
    answer = reply_to(whole, ADDRESSES)
    assert answer is not None
    assert reply_to(answer, ADDRESSES) is None


def test_each_node_is_answered_in_its_own_way() -> None:
    """A slow node gets its answer late, and a failing one not always."""
    with ExitStack() as stack:
        asked, told = [], []
        for how in RESOLVERS:
            here = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            there = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            there.bind(("127.0.0.1", 0))
            here.connect(there.getsockname())
            here.settimeout(30)
            there.set_inheritable(True)
            asked.append(here)
            told.append({"fd": there.fileno(), "how": how, "seed": how})
        server = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "copperfs.lab.local_cluster.name_server"],
                stdin=subprocess.PIPE,
                pass_fds=[int(str(each["fd"])) for each in told],
                text=True,
            )
        )
        stack.callback(server.kill)
        assert server.stdin is not None
        with server.stdin as pipe:
            json.dump({"addresses": ADDRESSES, "sockets": told}, pipe)
        quick, slow, failing = asked
        began = time.monotonic()
        slow.send(question("node1.copperfs.test"))
        quick.send(question("node1.copperfs.test"))
        assert code_of(quick.recv(512)) == (77, 0, 1)
        codes = set()
        for _ in range(40):
            failing.send(question("node1.copperfs.test"))
            codes.add(code_of(failing.recv(512))[1])
        assert codes == {0, 2}
        assert code_of(slow.recv(512)) == (77, 0, 1)
        assert time.monotonic() - began >= SLOW_S


def test_the_library_is_the_one_that_was_built_with_copperfs() -> None:
    node = ClusterNode("node0", "/nowhere", conditions=Conditions(skew=1.0))
    library = surroundings.environment(node, {"LD_PRELOAD": "other.so"})["LD_PRELOAD"]
    ours, others = library.split()
    assert Path(ours).is_file()
    assert others == "other.so"
