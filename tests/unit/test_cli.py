"""Command line: exit codes, the stream of each message, and ``copperfs config show``."""

import argparse
import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from copperfs import __version__
from copperfs.cli import main as cli
from copperfs.cli import which_mount
from copperfs.cli.options import EVERYDAY, INTERNAL, given_flags, take_mount_options
from copperfs.cli.output import printable
from copperfs.cli.preflight import with_tier_size
from copperfs.config.settings import MIB, OPTIONS, RUN_ONLY, Settings
from copperfs.lab import commands
from copperfs.lab.commands import cluster_nodes
from copperfs.model.errors import (
    ConfigError,
    ControlError,
    CopperError,
    LaunchError,
    MountError,
    NotBuiltError,
    UsageError,
)
from tests.mount.helpers import run


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COPPERFS_CONFIG", raising=False)
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


class Failing:
    NAME = "fail"
    HELP = "fail in the way asked for"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, arguments: argparse.Namespace) -> int:
        raise self.error


def only_command(monkeypatch: pytest.MonkeyPatch, command: cli.Command) -> None:
    monkeypatch.setattr(cli, "COMMANDS", (command.NAME,))
    monkeypatch.setattr(cli, "command_named", lambda name: command)


def config_show(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, object]]:
    assert cli.main(["config", "show", "--json", *flags]) == 0
    shown: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return shown


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"copperfs {__version__}\n"


def test_an_error_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MountError("/mnt is in use; unmount it first")
    only_command(monkeypatch, Failing(error))
    assert cli.main(["fail"]) == 4
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "copperfs: /mnt is in use; unmount it first\n")


def test_an_error_that_another_process_tells_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_command(monkeypatch, Failing(LaunchError("")))
    assert cli.main(["fail"]) == 6
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    only_command(monkeypatch, Failing(KeyboardInterrupt()))
    assert cli.main(["fail"]) == 130


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "there is no command nonsense"),
        (["moutn"], "there is no command moutn; did you mean 'copperfs mount'?"),
        (["--mount"], "there is no option --mount"),
        (["config", "shwo"], "config shwo; did you mean 'copperfs config show'?"),
        (["help", "moutn"], "did you mean 'copperfs mount'?"),
        (["mount", "--memry", "4G", "/x"], "there is no option --memry; did you mean --memory?"),
        (["mount", "-x", "/x"], "there is no option -x"),
        (["mount"], "mount: name a directory to mount over"),
        (["mount", "/a", "/b", "/c"], "mount: /b /c: arguments too many"),
        (["mount", "-o", "memry=4G", "/a"], "there is no -o memry; did you mean memory?"),
        (["mount", "-o", "rw", "/a"], "there is no -o rw; the mount is read-only"),
        (["mount", "-o", "memory=lots", "/a"], "-o memory=lots: 'lots' is not a size"),
        (["keygen"], "keygen: FILE is missing"),
        (["completion", "bsh"], "'bsh' is not one of bash, zsh, fish"),
        (["umount"], "umount: nothing is named"),
        (["umount", "--stale", "/a", "/b"], "--stale takes one directory"),
        (["record", "-o", "/nowhere/x", "/"], "no command is given"),
        (["profile", "/"], "nothing to profile"),
        (["config", "show", "--memory", "lots"], "--memory: 'lots' is not a size; write"),
        (["config", "show", "--memory"], "--memory needs a value"),
        (["config", "show", "--front-threads", "x"], "is not a whole number from 1 to 64"),
        (["config", "show", "--revalidate", "-1"], "config show: --revalidate"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert 1 <= len(error.splitlines()) <= 3
    assert "usage:" not in error


@pytest.mark.parametrize(("words", "shown"), [([], "Mount:"), (["config"], "show")])
def test_no_command_is_wrong_usage_and_prints_help(
    capsys: pytest.CaptureFixture[str], words: list[str], shown: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert shown in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    "words",
    [["help"], ["--help"], ["help", "mount"], ["help", "config"], ["help", "config", "show"]],
)
def test_help_is_a_command(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 0
    assert " ".join(["usage: copperfs", *words[1:]]) in capsys.readouterr().out


def test_the_help_of_mount_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            cli.main(["mount", flag])
        shown[flag] = capsys.readouterr().out
        assert max(map(len, shown[flag].splitlines())) <= 80
    assert len(shown["--help"].splitlines()) <= 45
    for flag in ("--memory", "--shared", "--hostfile", "--tier-dir", "--help-all"):
        assert f"{flag} " in shown["--help"]
    offered = [option for option in OPTIONS if option.name not in {*INTERNAL, *RUN_ONLY}]
    assert all(option.flag in shown["--help-all"] for option in offered)
    by_name = {option.name: option for option in OPTIONS}
    assert not [each for each in INTERNAL if f"{by_name[each].flag} " in shown["--help-all"]]


def test_a_hidden_option_goes_on_working(capsys: pytest.CaptureFixture[str]) -> None:
    shown = config_show(capsys, "--heartbeat", "2", "--vnodes", "7")
    assert (shown["heartbeat"]["value"], shown["vnodes"]["value"]) == (2.0, 7)


def test_the_settings_of_a_help_of_one_line_exist() -> None:
    assert {*EVERYDAY} - {"config", "mount_options"} <= {option.name for option in OPTIONS}
    assert {option.name for option in OPTIONS} >= INTERNAL
    assert not INTERNAL & {*EVERYDAY}


@pytest.mark.parametrize(
    ("words", "mountpoint", "shared"),
    [
        (["--shared", "/a", "/mnt"], "/mnt", ["/a"]),
        (["--shared", "/a", "--shared", "/b", "/mnt"], "/mnt", ["/a", "/b"]),
        (["/mnt", "--shared", "/a", "/b"], "/mnt", ["/a", "/b"]),
        (["--shared", "/a", "/b", "--no-fallback", "/mnt"], "/mnt", ["/a", "/b"]),
        (["-f", "--shared=/a", "/mnt"], "/mnt", ["/a"]),
    ],
)
def test_shared_takes_one_path_and_goes_on_taking_several(
    words: list[str], mountpoint: str, shared: list[str]
) -> None:
    arguments = cli._parse(["mount", *words])
    assert (arguments.mountpoint, arguments.shared) == (mountpoint, shared)


def test_several_values_without_their_flag_are_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config_show_of = ["config", "show", "--json", "--shared", "/a", "/b"]
    assert cli.main(config_show_of) == 0
    assert "give each value its own flag, as in --shared A --shared B" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["upgrade", "--all"], ["doctor"]])
def test_values_after_one_flag_are_no_mount_point(words: list[str]) -> None:
    arguments = cli._parse([*words, "--shared", "/lus", "/home"])
    assert arguments.shared == ["/lus", "/home"]
    assert not vars(arguments).get("mountpoint", vars(arguments).get("path"))


def test_options_of_a_command_below_another_are_known() -> None:
    assert cli._parse(["pfs-ask", "/mnt", "counts", "--json"]).json


def test_mount_takes_options_as_mount_fuse_does() -> None:
    arguments = cli._parse(
        ["mount", "-f", "-o", "ro,allow_other,memory=1MiB", "-o", "no_fallback", "/mnt"]
    )
    take_mount_options(arguments)
    assert arguments.foreground
    assert arguments.allow_other
    assert arguments.memory_bytes == 1 << 20
    assert arguments.fallback is False


def test_a_list_by_an_option_of_mount_fuse_is_a_list() -> None:
    arguments = cli._parse(["mount", "-o", "shared=/lus,shared=/b", "--ring", "/c", "/mnt"])
    take_mount_options(arguments)
    assert given_flags(arguments)["shared"] == ("/lus", "/b")
    assert given_flags(arguments)["ring"] == ("/c",)


def test_a_flag_wins_over_an_option_of_mount_fuse() -> None:
    arguments = cli._parse(["mount", "--memory", "2MiB", "-o", "memory=1MiB", "/mnt"])
    take_mount_options(arguments)
    assert arguments.memory_bytes == 2 << 20


def test_a_misspelled_variable_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPPERFS_MEMROY", "4G")
    monkeypatch.setenv("COPPERFS_LOGO", "x")
    monkeypatch.setenv("COPPERFS_MOUNTPOINT", "/mnt")
    assert cli.main(["config", "show", "--json"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "did you mean COPPERFS_MEMORY?" in line]
    assert [line for line in lines if "COPPERFS_LOGO is no variable of copperfs" in line]
    assert len(lines) == 2


def test_a_small_size_without_a_unit_is_warned_of_whatever_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file.toml").write_text('mover-rate = 30\nbypass-above = "40KiB"\n')
    monkeypatch.setenv("COPPERFS_TREE_MAX", "20")
    flags = ("--memory", "4", "--tier-memory", "0", "--config", str(tmp_path / "file.toml"))
    assert cli.main(["config", "show", "--json", *flags]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "copperfs: warning: --memory 4 is 4 bytes; write the unit, as in 4MiB",
        "copperfs: warning: COPPERFS_TREE_MAX 20 is 20 bytes; write the unit, as in 20MiB",
        "copperfs: warning: mover-rate 30 is 30 bytes; write the unit, as in 30MiB",
    ]


def test_more_memory_than_the_node_has_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--json", "--memory", "9000000G"]) == 0
    assert "is more than this node has: " in capsys.readouterr().err


def test_more_disk_than_there_is_is_warned_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tier = Settings(
        mountpoint="/mnt",
        memory_bytes=MIB,
        tier_dir=str(tmp_path / "made" / "later"),
        tier_size_bytes=1 << 60,
    )
    assert with_tier_size(tier) == tier
    assert f"is more than the disk of {tmp_path} has" in capsys.readouterr().err
    with_tier_size(replace(tier, tier_size_bytes=MIB))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CopperError("x"), 1),
        (UsageError("x"), 2),
        (ConfigError("x"), 2),
        (NotBuiltError("x"), 3),
        (MountError("x"), 4),
        (ControlError("x"), 5),
        (LaunchError("x"), 6),
    ],
)
def test_the_exit_code_says_the_kind_of_the_failure(
    monkeypatch: pytest.MonkeyPatch, error: CopperError, code: int
) -> None:
    only_command(monkeypatch, Failing(error))
    assert cli.main(["fail"]) == code
    assert str(code) in cli.EXIT_CODES.split()


@pytest.mark.parametrize("words", [["stats", "--json", "/nowhere"], ["nonsense", "--json"]])
def test_an_error_is_json_where_output_is(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code = cli.main(words)
    captured = capsys.readouterr()
    assert captured.out == ""
    told = json.loads(captured.err)
    assert told["version"] == 1
    assert told["error"]["exit_code"] == code
    assert told["error"]["message"]


@pytest.mark.parametrize("words", [["config", "show"], ["config", "show", "--json"]])
def test_a_full_disk_is_a_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "copperfs.cli.main", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == ("copperfs: standard output cannot be written: No space left on device\n")


def test_a_mount_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(which_mount, "own_mounts", list)
    with pytest.raises(MountError, match="no mount of copperfs is yours"):
        which_mount.which_mount(None)
    monkeypatch.setattr(which_mount, "own_mounts", lambda: ["/a"])
    assert which_mount.which_mount(None) == "/a"
    assert which_mount.mount_and_paths("data", ["more"]) == ("/a", ["data", "more"])
    monkeypatch.setattr(which_mount, "own_mounts", lambda: ["/a", "/b"])
    with pytest.raises(UsageError, match="name one: /a, /b"):
        which_mount.which_mount(None)
    assert which_mount.mount_and_paths("data", ["more"]) == ("data", ["more"])
    monkeypatch.setenv("COPPERFS_MOUNTPOINT", "/b")
    assert which_mount.which_mount(None) == "/b"
    assert which_mount.which_mount("/c") == "/c"


@pytest.mark.parametrize(
    ("words", "mountpoint", "program"),
    [
        (["/mnt", "-o", "f", "ls", "-l"], "/mnt", ["ls", "-l"]),
        (["/mnt", "-o", "f", "--", "ls", "-l"], "/mnt", ["ls", "-l"]),
        (["-o", "f", "--", "ls"], None, ["ls"]),
    ],
)
def test_record_finds_its_command(
    words: list[str], mountpoint: str | None, program: list[str]
) -> None:
    arguments = cli._parse(["record", *words])
    assert (arguments.mountpoint, arguments.program) == (mountpoint, program)


def test_every_command_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for command in map(cli.command_named, cli.command_names()):
        with pytest.raises(SystemExit) as caught:
            cli.main([*command.NAME.split(), "--help"])
        assert caught.value.code == 0
        assert command.HELP in capsys.readouterr().out.replace("\n", " ").lower()


def test_every_module_that_is_a_command_is_listed() -> None:
    for file, names in ((cli.__file__, cli.COMMANDS), (cluster_nodes.__file__, commands.COMMANDS)):
        modules = Path(file).parent.glob("*.py")
        found = {each.stem for each in modules if "\nNAME = " in each.read_text()}
        of_nodes = {f"cluster {each}" for each in cluster_nodes.COMMANDS}
        listed = {each.replace(" ", "_").replace("-", "_") for each in {*names} - of_nodes}
        assert found == listed
    assert [*cluster_nodes.COMMANDS] == [*commands.NODE_COMMANDS]
    for name in cli.command_names():
        command = cli.command_named(name)
        assert name == command.NAME
        assert [*inspect.signature(command.add_arguments).parameters] == ["parser"]
        assert [*inspect.signature(command.run).parameters] == ["arguments"]


@pytest.mark.parametrize(
    "words", [["stats", "--json", "/"], ["cluster", "down", "--json", "--dir", "/nowhere"]]
)
def test_a_command_imports_no_other_and_what_prints_only_to_print(words: list[str]) -> None:
    """Thousands of nodes import a command at once, from a loaded filesystem."""
    script = (
        "from copperfs.cli.main import main\nimport sys\nmain(sys.argv[1:])\nprint(*sys.modules)"
    )
    done = run([sys.executable, "-P", "-c", script, *words])
    imported = set(done.stdout.splitlines()[-1].split())
    others = {f"copperfs.cli.{each}" for each in ("top", "mount", "bugreport", "doctor")}
    others |= {"copperfs.lab.commands.sim_run", "copperfs.lab.commands.cluster_up"}
    assert "copperfs.cli.main" in imported, done.stderr
    assert not imported & (others | {"rich", "trio", "importlib.metadata", "tomllib"})


def test_a_command_of_the_product_imports_nothing_of_the_lab() -> None:
    script = (
        "from copperfs.cli.main import COMMANDS, _parse, build_parser\nimport sys\n"
        "build_parser(COMMANDS)\n_parse(['mount', '--source', '/', '/mnt'])\n"
        "import copperfs.daemon.daemon_main\nprint(*sys.modules)"
    )
    done = run([sys.executable, "-P", "-c", script])
    imported = set(done.stdout.split())
    assert {"copperfs.cli.mount", "copperfs.daemon.daemon_main"} <= imported, done.stderr
    assert not {each for each in imported if each.startswith("copperfs.lab")}


def test_config_show_names_the_origin_of_each_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / ".config" / "copperfs.toml"
    path.parent.mkdir()
    path.write_text('tree-max = "1MiB"\nsymlinks = "keep"\n')
    monkeypatch.setenv("COPPERFS_SYMLINKS", "rewrite")
    shown = config_show(capsys, "--no-fallback", "--shared", "/a", "/b", "--shared=/c")
    assert list(shown) == ["version", *(option.key for option in OPTIONS)]
    assert shown["tree-max"] == {"value": 1 << 20, "origin": "file", "where": str(path)}
    assert shown["symlinks"] == {
        "value": "rewrite",
        "origin": "variable",
        "where": "COPPERFS_SYMLINKS",
    }
    assert shown["fallback"]["value"] is False
    assert shown["shared"] == {"value": ["/a", "/b", "/c"], "origin": "flag", "where": "--shared"}
    assert shown["log-level"] == {"value": "info", "origin": "default", "where": "default"}


def test_config_show_prints_a_line_for_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--memory", "1536M"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["memory", "1536", "MiB", "flag", "--memory"] in lines
    assert ["shared", "automatic", "default"] in lines
    assert len(lines) == 1 + len(OPTIONS)


def test_none_as_a_flag_overrides_a_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPPERFS_REVALIDATE", "5")
    assert config_show(capsys)["revalidate"]["value"] == 5.0
    assert config_show(capsys, "--revalidate", "none")["revalidate"]["value"] is None


def test_a_file_that_was_asked_for_has_to_exist(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = tmp_path / "absent.toml"
    assert cli.main(["config", "show", "--config", str(absent)]) == 2
    error = capsys.readouterr().err
    assert error == f"copperfs: {absent}: no such file; correct --config or leave it out\n"
    monkeypatch.setenv("COPPERFS_CONFIG", str(tmp_path))
    assert cli.main(["config", "show"]) == 2
    assert capsys.readouterr().err == f"copperfs: {tmp_path} cannot be read: Is a directory\n"


def test_the_file_of_the_flag_is_taken_instead_of_that_of_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, threads in (("flag", 3), ("variable", 4)):
        (tmp_path / name).write_text(f"front-threads = {threads}")
    monkeypatch.setenv("COPPERFS_CONFIG", str(tmp_path / "variable"))
    assert config_show(capsys)["front-threads"]["value"] == 4
    assert config_show(capsys, "--config", str(tmp_path / "flag"))["front-threads"]["value"] == 3


def test_names_that_are_not_utf8_can_be_printed() -> None:
    assert printable("caf\N{LATIN SMALL LETTER E WITH ACUTE}") == "café"
    assert printable("\udcff\nx\x1b[0m") == "\\xff\\nx\\x1b[0m"


@pytest.mark.parametrize(
    ("words", "program", "shared"),
    [
        (["python3", "-c", "1"], ["python3", "-c", "1"], None),
        (["--summary", "sh", "-c", "ls"], ["sh", "-c", "ls"], None),
        (["--shared", "/a", "python3", "-m", "x"], ["python3", "-m", "x"], ["/a"]),
        (["--shared=/a", "--no-fallback", "/bin/ls", "/"], ["/bin/ls", "/"], ["/a"]),
        (["--shared", "/a", "/b", "--", "ls", "-l"], ["ls", "-l"], ["/a", "/b"]),
        (["--shared", "/a", "/b", "--no-fallback", "ls"], ["ls"], ["/a", "/b"]),
        (["--shared", "/a", "pytest", "-q", "--", "t"], ["pytest", "-q", "--", "t"], ["/a"]),
        (["git", "log", "--", "file"], ["git", "log", "--", "file"], None),
        (["--", "git", "--", "file"], ["git", "--", "file"], None),
        (["--mem", "1G", "ls", "--memory", "2G"], ["ls", "--memory", "2G"], None),
    ],
)
def test_run_takes_its_command_with_and_without_a_separator(
    words: list[str], program: list[str], shared: list[str] | None
) -> None:
    arguments = cli._parse(["run", *words])
    assert arguments.program == program
    assert getattr(arguments, "shared", None) == shared
