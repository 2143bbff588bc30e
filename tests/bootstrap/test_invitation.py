"""Node identity: a node's address, socket and keys, and how they reach the daemon."""

import io
import ipaddress
import json
import socket
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from copperfs import __version__
from copperfs.cli import main as cli
from copperfs.launch import listen_address as address
from copperfs.launch.curve_keys import derive_pair, draw_pair, read_key_file, write_key_file
from copperfs.launch.launch_method import Launch, line_of
from copperfs.launch.listen_address import choose_address, endpoint_of, open_listener
from copperfs.launch.mpi_launch import Gathered, compose
from copperfs.launch.node_identity import check, own_version
from copperfs.launch.node_sets import expand, fold
from copperfs.model.errors import LaunchError
from copperfs.model.roster import BadRoster, Member, Roster
from copperfs.model.types import NodeId

LOOPBACK = ipaddress.ip_address("127.0.0.1")


# ---- addresses -----------------------------------------------------------------------------------


def test_an_interface_a_network_and_an_address_mean_the_same() -> None:
    for listen in ("lo", "127.0.0.0/8", "127.0.0.1"):
        assert choose_address(listen) == LOOPBACK


def test_what_is_no_place_to_listen_is_told_with_what_there_is() -> None:
    with pytest.raises(LaunchError, match=r"hsn9 is neither .* it has lo \(127.0.0.1"):
        choose_address("hsn9")
    with pytest.raises(LaunchError, match=r"is in the network 203.0.113.0/24; it has lo"):
        choose_address("203.0.113.0/24")
    with pytest.raises(LaunchError, match=r"203.0.113.7 is no address of this machine; it has lo"):
        open_listener(choose_address("203.0.113.7"), 0)


def test_without_listen_the_loopback_address_is_the_last_resort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ib0, eth0 = ipaddress.ip_address("198.51.100.7"), ipaddress.ip_address("203.0.113.7")
    interfaces: dict[str, list[address.Address]] = {"lo": [LOOPBACK], "ib0": [ib0], "eth0": [eth0]}
    name_means = ["127.0.1.1"]
    monkeypatch.setattr(address, "interface_addresses", lambda: interfaces)
    monkeypatch.setattr(address, "_default_route", lambda: "eth0")
    monkeypatch.setattr(
        "socket.getaddrinfo",
        lambda *_, **__: [(2, 1, 6, "", (each, 0)) for each in name_means],
    )
    assert choose_address(None) == eth0
    name_means[:] = ["127.0.1.1", "198.51.100.7"]
    assert choose_address(None) == ib0
    name_means[:] = ["192.0.2.200"]  # a stale entry: this machine has no such address
    assert choose_address(None) == eth0
    del interfaces["eth0"]
    assert choose_address(None) == ib0
    del interfaces["ib0"]
    assert choose_address(None) == LOOPBACK


def test_a_taken_port_is_told_in_one_sentence() -> None:
    with open_listener(LOOPBACK, 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"^port {port} of 127.0.0.1 is taken; end what"):
            open_listener(LOOPBACK, port)


def test_who_connects_before_the_daemon_is_there_waits() -> None:
    with open_listener(LOOPBACK, 0) as listener:
        assert endpoint_of(listener) == f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with socket.create_connection(listener.getsockname(), timeout=5):
            listener.accept()[0].close()


def test_an_endpoint_of_ipv6_has_brackets() -> None:
    try:
        listener = open_listener(ipaddress.ip_address("::1"), 0)
    except LaunchError:
        pytest.skip("no IPv6 here")
    with listener:
        assert endpoint_of(listener).startswith("tcp://[::1]:")


# ---- keys ----------------------------------------------------------------------------------------


def test_a_secret_gives_each_name_the_same_pair_everywhere() -> None:
    import zmq

    one = derive_pair(b"s" * 32, "n1")
    assert derive_pair(b"s" * 32, "n1") == one
    assert zmq.curve_public(one.secret.encode()).decode() == one.public
    assert len({one, derive_pair(b"s" * 32, "n2"), derive_pair(b"t" * 32, "n1")}) == 3


def test_keys_are_not_shown() -> None:
    pair = draw_pair()
    with open_listener(LOOPBACK, 0) as listener:
        roster = Roster("j", (Member("a", endpoint_of(listener), pair.public),))
        shown = repr((pair, Launch(roster, NodeId(0), listener, pair.secret)))
    assert pair.public in shown
    assert pair.secret not in shown


def test_a_key_file_is_its_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "key"
    assert cli.main(["keygen", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(read_key_file(str(path))) == 64
    assert cli.main(["keygen", str(path)]) == 6
    assert "exists already; remove it" in capsys.readouterr().err
    path.chmod(0o640)
    with pytest.raises(LaunchError, match="is not yours alone; make another"):
        read_key_file(str(path))


def test_what_is_no_key_file_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="does not exist; make one with: copperfs keygen"):
        read_key_file(str(tmp_path / "absent"))
    with pytest.raises(LaunchError, match="is not a file"):
        read_key_file(str(tmp_path))
    (tmp_path / "short").touch(mode=0o600)
    with pytest.raises(LaunchError, match="is too short to be a secret"):
        read_key_file(str(tmp_path / "short"))
    with pytest.raises(LaunchError, match="cannot be written: No such file"):
        write_key_file(str(tmp_path / "absent" / "key"))


# ---- sets of nodes -------------------------------------------------------------------------------


def test_sets_of_nodes_are_taken_apart_and_folded() -> None:
    assert expand("n[08-10],login1", "here") == ("login1", "n08", "n09", "n10")
    assert expand("n1.site.org", "here") == ("n1.site.org",)
    assert fold(["n3", "n1", "n2", "x"]) == "n[1-3],x"
    with pytest.raises(LaunchError, match=r"^here: 'n\[1-' is not a set of nodes: "):
        expand("n[1-", "here")
    with pytest.raises(LaunchError, match="are more than 200000"):
        expand("n[1-200001]", "here")


def test_a_group_of_nodes_runs_no_command() -> None:
    assert expand("@compute,n1", "here") == ("@compute", "n1")


# ---- ranks evaluate what they gathered -----------------------------------------------------------


def gathered(rank: int, *messages: str) -> Gathered:
    return Gathered(rank, list(messages))


def test_the_roster_is_in_order_of_rank_and_the_job_that_of_rank_0() -> None:
    members = [Member("z", "tcp://z:1", tier_bytes=5), Member("a", "tcp://a:1")]
    texts = [
        json.dumps({"name": each.name, "job": each.name, "member": asdict(each)})
        for each in members
    ]
    roster, me = compose(gathered(1, *texts))
    assert (roster.job, list(roster.members), me) == ("z", members, 1)


@pytest.mark.parametrize("size", [-1, 1 << 61, 1.5, "1", None, True])
def test_the_size_of_a_tier_is_a_size(size: object) -> None:
    member = asdict(Member("n", "tcp://h:1")) | {"tier_bytes": size}
    with pytest.raises(BadRoster, match="tier"):
        Roster.from_json(json.dumps({"job": "j", "members": [member]}))


@pytest.mark.parametrize(
    ("failed", "sentence"),
    [
        ((0,), "n0: no room"),
        ((0, 1, 2, 3), "n0: no room; n1: no room; n2: no room (and 1 more)"),
    ],
)
def test_what_fails_somewhere_fails_everywhere(failed: tuple[int, ...], sentence: str) -> None:
    texts = [
        f'{{"name": "n{rank}", "error": "no room"}}' if rank in failed else f'{{"name": "n{rank}"}}'
        for rank in range(4)
    ]
    with pytest.raises(BadRoster) as caught:
        compose(gathered(3, *texts))
    assert str(caught.value) == sentence


@pytest.mark.parametrize("other", [[99, "9.9.1"], None])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_ranks_of_different_versions_are_told_apart(other: object, where: int) -> None:
    texts = [
        json.dumps(
            {
                "name": f"n{rank}",
                "job": "j",
                "member": asdict(Member(f"n{rank}", f"tcp://n{rank}:1")),
                "runs": other if rank == where else own_version(),
            }
        )
        for rank in range(3)
    ]
    with pytest.raises(BadRoster) as caught:
        compose(gathered(2, *texts))
    theirs = "an older copperfs" if other is None else "copperfs 9.9.1 (wire version 99)"
    assert f"n{where} runs {theirs} and n" in str(caught.value)
    assert f"runs copperfs {__version__} (wire version " in str(caught.value)


def test_nodes_that_listen_on_loopback_are_all_on_one_machine() -> None:
    inside, outside = Member("a", "tcp://127.0.0.1:1"), Member("b", "tcp://192.0.2.2:1")
    check(Roster("j", (inside, Member("c", "tcp://127.0.0.1:2"))))
    with pytest.raises(BadRoster, match="a listens on the loopback address only"):
        check(Roster("j", (outside, inside)))


# ---- to the daemon -------------------------------------------------------------------------------


def test_a_launch_reaches_another_process_with_its_socket() -> None:
    listener = open_listener(LOOPBACK, 0)
    roster = Roster("j", tuple(Member(f"n{n}", f"tcp://h:{n}") for n in range(3)))
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("r", encoding="ascii") as lines:
        for launch in (Launch(roster, NodeId(2), listener, "secret"), None):
            ours.sendall(f"{line_of(launch)}\n".encode("ascii"))
        listener_name = listener.getsockname()
        listener.detach()  # the other process has it under the same number
        received = Launch.receive_from(lines)
        assert Launch.receive_from(lines) is None
    assert received is not None
    with received.listener:
        assert (received.roster, received.me, received.secret_key) == (roster, 2, "secret")
        assert received.listener.getsockname() == listener_name
        assert not received.listener.get_inheritable()


def test_many_nodes_fit_on_the_way() -> None:
    members = tuple(Member(f"n{n}", f"tcp://h{n}:1", "k" * 36 + f"{n:04}") for n in range(5000))
    with open_listener(LOOPBACK, 0) as listener:
        text = Launch(Roster("j", members), NodeId(0), listener, "secret").to_json()
        number = socket.socket(fileno=socket.dup(listener.fileno()))
        with number:
            text = text.replace(
                f'"listener": {listener.fileno()}', f'"listener": {number.fileno()}'
            )
            received = Launch.receive_from(io.StringIO(text + "\n"))
            assert received is not None
            assert received.roster.members == members
            received.listener.detach()
