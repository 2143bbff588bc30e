"""Command line: exit codes, the stream of each message, and ``copperfs config show``."""

import argparse
import inspect
import json
import sys
from pathlib import Path

import pytest

from copperfs import __version__
from copperfs.cli import main as cli
from copperfs.cli.output import printable
from copperfs.config.settings import OPTIONS
from copperfs.lab import commands
from copperfs.lab.commands import cluster_nodes
from copperfs.model.errors import LaunchError, MountError
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


def test_an_error_is_one_sentence_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MountError("/mnt is in use; unmount it first")
    only_command(monkeypatch, Failing(error))
    assert cli.main(["fail"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "copperfs: /mnt is in use; unmount it first\n")


def test_an_error_that_another_process_tells_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_command(monkeypatch, Failing(LaunchError("")))
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    only_command(monkeypatch, Failing(KeyboardInterrupt()))
    assert cli.main(["fail"]) == 130


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["config"], "required: COMMAND"),
        (["config", "show", "--memory", "lots"], "argument --memory: 'lots' is not a size; write"),
        (["config", "show", "--front-threads", "x"], "is not a whole number from 1 to 64"),
        (["config", "show", "--revalidate", "-1"], "argument --revalidate"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


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
    assert list(shown) == [option.key for option in OPTIONS]
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
    assert cli.main(["config", "show", "--config", str(absent)]) == 1
    error = capsys.readouterr().err
    assert error == f"copperfs: {absent}: no such file; correct --config or leave it out\n"
    monkeypatch.setenv("COPPERFS_CONFIG", str(tmp_path))
    assert cli.main(["config", "show"]) == 1
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
