"""Rewriting: the entries of an environment that ``copperfs run`` leads through its mount."""

import os
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from copperfs.cli.rewriting import PREFIX_ENV_DEFAULT, Rewriter, prefix_names
from copperfs.model.types import Path
from copperfs.node.requests.path_policy import Policy

MNT = "/tmp/mnt"
# realpath within the mount: where links there lead.
LINKS = {f"{MNT}/home/me": f"{MNT}/lus/home/me", f"{MNT}/lus/tools": "/opt/tools"}


def real(path: str) -> str:
    for link, target in LINKS.items():
        if path == link or path.startswith(link + "/"):
            return target + path[len(link) :]
    return "/lus/me" + path[len("/scratch") :] if path.startswith("/scratch") else path


POLICY = Policy(b"/", MNT.encode(), shared=(Path(b"lus"),), local=(Path(b"lus/local"),))
REWRITER = Rewriter(MNT, "/", "/", POLICY, realpath=real)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/lus/env/lib", f"{MNT}/lus/env/lib"),
        ("/usr/lib:/lus/env/lib:/lib", f"/usr/lib:{MNT}/lus/env/lib:/lib"),
        ("", ""),
        (":/lus/a::", f":{MNT}/lus/a::"),
        ("lus/a:.", "lus/a:."),
        ("/lustre/a", "/lustre/a"),
        ("/lus/local/a", "/lus/local/a"),
        ("/usr/../lus/a", f"{MNT}/lus/a"),
        (f"{MNT}/lus/a", f"{MNT}/lus/a"),
        ("/home/me/env", f"{MNT}/home/me/env"),  # a link to a shared path
        ("/lus/tools/bin", "/lus/tools/bin"),  # a link to a path of this node
    ],
)
def test_what_is_shared_is_led_through_the_mount(value: str, expected: str) -> None:
    assert REWRITER.value(value) == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("HF_HOME,PATH", ["HF_HOME", "PATH"]),
        ("+HF_HOME", [*PREFIX_ENV_DEFAULT, "HF_HOME"]),
        ("+HF_HOME,+PATH", [*PREFIX_ENV_DEFAULT, "HF_HOME"]),
        ("none", []),
    ],
)
def test_a_variable_with_a_plus_is_added_to_the_default_ones(text: str, names: list[str]) -> None:
    assert prefix_names(text) == names


def test_only_variables_that_are_named_or_given_change() -> None:
    environ = {"PATH": "/lus/bin", "OTHER": "/lus/other", "PYTHONPATH": "/lus/py"}
    changed = REWRITER.environment(
        environ, ["PATH", "PYTHONPATH", "UNSET"], {"PYTHONPATH": "/usr:/lus/mine", "NEW": "word"}
    )
    assert changed == {
        "PATH": f"{MNT}/lus/bin",
        "OTHER": "/lus/other",
        "PYTHONPATH": f"/usr:{MNT}/lus/mine",
        "NEW": "word",
    }
    assert environ["PATH"] == "/lus/bin"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/lus/me/env", f"{MNT}/env"),
        ("/lus/me", MNT),
        ("/scratch/env", f"{MNT}/env"),  # a link into the source
        ("/lus/other", "/lus/other"),
    ],
)
def test_paths_below_a_source_that_is_not_the_root(path: str, expected: str) -> None:
    policy = replace(POLICY, source=b"/lus/me", shared=(Path(b""),), local=())
    rewriter = Rewriter(MNT, "/lus/me", "/lus/me", policy, realpath=real)
    assert rewriter.path(path) == expected


def test_a_command_keeps_the_path_of_its_venv_and_of_its_interpreter(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last link may lead to a local interpreter; a script names the shared one."""
    mountpoint, source = tmp_path / "mnt", tmp_path / "lus"
    for top in (mountpoint / str(source).strip("/"), source):
        (top / "venv/bin").mkdir(parents=True)
        (top / "venv/bin/python3").symlink_to("/usr/bin/env")
        script = top / "venv/bin/tool"
        script.write_text(f"#!{source}/venv/bin/python3 -s\n")
        script.chmod(0o755)
    shared = Path(os.fsencode(source).strip(b"/"))
    policy = Policy(b"/", os.fsencode(mountpoint), shared=(shared,))
    rewriter = Rewriter(str(mountpoint), "/", "/", policy)
    inside = f"{mountpoint}{source}/venv/bin"
    python, tool = f"{inside}/python3", f"{inside}/tool"
    assert rewriter.command([f"{source}/venv/bin/python3", "-c"], "") == [python, "-c"]
    assert rewriter.command([f"{source}/venv/bin/tool", "x"], "") == [python, "-s", tool, "x"]
    assert rewriter.command(["tool", "x"], inside) == [python, "-s", tool, "x"]
    assert rewriter.command(["/usr/bin/env"], "") == ["/usr/bin/env"]
    assert rewriter.command(["./tool"], "") == ["./tool"]
    monkeypatch.chdir(source)
    assert rewriter.command(["venv/bin/python3", "-c"], "") == [python, "-c"]
    assert rewriter.command(["./venv/bin/tool"], "") == [python, "-s", tool]
