"""Launch by a hostfile: nodes exchange nothing, and all have the same roster."""

from pathlib import Path

import pytest

from copperfs.launch.curve_keys import write_key_file
from copperfs.launch.hostfile import HostLine, parse_hostfile
from copperfs.model.errors import LaunchError
from tests.bootstrap.helpers import Nodes
from tests.bootstrap.slurm import free_ports


def test_lines_are_sets_with_a_port_of_their_own_or_the_common_one() -> None:
    text = "# all of them\n\nlogin  # first\nn[01-02]:5000\nn3.site:6\n"
    assert parse_hostfile(text, "f", 4711) == (
        HostLine("login", 4711),
        HostLine("n01", 5000),
        HostLine("n02", 5000),
        HostLine("n3.site", 6),
    )


def test_a_line_may_say_how_large_the_tiers_of_its_nodes_are() -> None:
    text = "n[1-2]  tier=1.5TiB # new ones\nold:5000 tier=512MiB\nlogin tier=0\n"
    assert parse_hostfile(text, "f", 4711) == (
        HostLine("n1", 4711, 3 << 39),
        HostLine("n2", 4711, 3 << 39),
        HostLine("old", 5000, 1 << 29),
        HostLine("login", 4711, 0),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "f names no node; write one on each line"),
        ("a\nb c\n", "f, line 2: 'b c' is not HOST, HOST:PORT or a set"),
        ("a:0", "f, line 1: 'a:0' is not HOST"),
        ("a:70000", "f, line 1: 'a:70000' is not HOST"),
        ("[::1]:5", "f, line 1: '[::1]:5' is not HOST"),
        ("n[1-", "f, line 1: 'n[1-' is not a set of nodes"),
        ("a tier=lots", "f, line 1: tier: 'lots' is not a size"),
        ("a tier=", "f, line 1: 'a tier=' is not HOST"),
        ("a\nb tier=1G\nc", "f says tier= for some nodes and not for a: say it for all, or for"),
        ("n[1-300000]", "f, line 1: 300000 nodes are more than 200000"),
    ],
)
def test_a_wrong_hostfile_is_told_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_hostfile(text, "f", 4711)
    assert str(caught.value).startswith(sentence)


PORT = free_ports(1)[0]


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text(f"127.0.11.[1-3]:{PORT}\n")
    return path


def test_every_node_has_the_same_roster_with_keys_from_one_secret(
    nodes: Nodes, tmp_path: Path, hostfile: Path
) -> None:
    key = tmp_path / "key"
    write_key_file(str(key))
    started = [
        nodes.start("--hostfile", hostfile, "--key-file", key, "--node-name", f"127.0.11.{n}")
        for n in (3, 1, 2)
    ]
    ended = [each.ended() for each in started]
    assert [each.last["me"] for each in ended] == [2, 0, 1]
    assert len({each.roster.to_json() for each in ended}) == 1
    for each in ended:
        me = each.roster.members[each.last["me"]]
        assert each.last["listens"] == me.endpoint
        assert each.last["has_secret"]
        assert len(me.public_key) == 40
        assert "mpi4py" not in each.last["imported"]


def test_the_size_of_the_tiers_is_what_the_file_says_or_the_same_for_all(
    nodes: Nodes, hostfile: Path
) -> None:
    def sizes(*flags: str) -> list[int]:
        common = ("--hostfile", hostfile, "--security", "none", "--node-name", "127.0.11.2")
        members = nodes.start(*common, *flags).ended().roster.members
        return [each.tier_bytes for each in members]

    assert sizes() == [1, 1, 1]
    assert sizes("--tier-memory", "7G") == [1, 1, 1]
    assert sizes("--tier-memory", "0") == [0, 0, 0]
    hostfile.write_text(f"127.0.11.[1-2]:{PORT} tier=1G\n127.0.11.3:{PORT} tier=0\n")
    assert sizes("--tier-memory", "0") == [1 << 30, 1 << 30, 0]


def test_another_secret_or_another_file_is_another_job(
    nodes: Nodes, tmp_path: Path, hostfile: Path
) -> None:
    jobs = set()
    for name, more in (("a", ""), ("b", ""), ("b", "127.0.11.9\n")):
        key = tmp_path / f"key-{name}"
        if not key.exists():
            write_key_file(str(key))
        hostfile.write_text(f"127.0.11.[1-3]:{PORT}\n" + more)
        flags = ("--hostfile", hostfile, "--key-file", key, "--node-name", "127.0.11.1")
        jobs.add(nodes.start(*flags).ended().roster.job)
    assert len(jobs) == 3


def test_a_hostfile_of_one_node_is_no_launch(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost\n")
    assert nodes.start("--hostfile", tmp_path / "hosts").ended().last["way"] == "Alone"


def test_a_hostfile_of_another_node_alone_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    """It used to mount alone, without a word."""
    (tmp_path / "hosts").write_text("another-node.invalid\n")
    error = nodes.start("--hostfile", tmp_path / "hosts", "--node-name", "n7").ended().error
    assert "names only another-node.invalid, and this node is n7" in error


@pytest.mark.parametrize("name", ["n7", "n7.site", "127.0.0.1"])
def test_a_hostfile_of_this_node_alone_names_it_in_any_way(
    nodes: Nodes, tmp_path: Path, name: str
) -> None:
    (tmp_path / "hosts").write_text(f"{name}\n")
    ended = nodes.start("--hostfile", tmp_path / "hosts", "--node-name", "n7").ended()
    assert ended.last["way"] == "Alone"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--node-name", "127.0.11.1"], "--hostfile needs a secret that all nodes share"),
        (["--node-name", "n7", "--security", "none"], "n7 is not in the hostfile"),
        (["--nodes", "4"], "names 3 nodes, and --nodes says 4"),
        (["--node-name", "127.0.11.1", "--key-file", "/absent"], "copperfs keygen /absent"),
    ],
)
def test_what_is_missing_is_told_in_one_sentence(
    nodes: Nodes, hostfile: Path, flags: list[str], sentence: str
) -> None:
    error = nodes.start("--hostfile", hostfile, *flags).ended().error
    assert sentence in error
    assert "\n" not in error


def test_a_name_twice_is_a_wrong_roster(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:5\nlocalhost:6\n")
    flags = ("--hostfile", tmp_path / "hosts", "--security", "none", "--node-name", "localhost")
    assert "two nodes have the name 'localhost'" in nodes.start(*flags).ended().error


def test_a_hostfile_that_is_missing(nodes: Nodes, tmp_path: Path) -> None:
    error = nodes.start("--hostfile", tmp_path / "absent").ended().error
    assert error.endswith("absent cannot be read: No such file or directory")
