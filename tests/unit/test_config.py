"""Settings: the syntax of values, the precedence of origins, and the errors for wrong values."""

from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.config.settings import (
    GIB,
    KIB,
    MIB,
    OPTIONS,
    ConfigFile,
    Option,
    Origin,
    Resolved,
    Settings,
    Value,
    check_tier,
    default_memory_bytes,
    format_seconds,
    format_size,
    parse_seconds,
    parse_size,
    resolve,
    settings_of,
)
from copperfs.lab.manual import markdown
from copperfs.model.errors import ConfigError
from tests.unit.test_layers import ROOT

BY_NAME = {option.name: option for option in OPTIONS}
EXAMPLES: dict[str, Value] = {
    "in_place": "always",
    "in_place_at": ("/lus/sw", "/lus/data"),
    "writable": ("/lus/sw/results",),
    "source": "/lus",
    "metrics": "9400",
    "shared": ("/lus", "/home"),
    "symlinks": "keep",
    "inodes": "ignore",
    "allow_other": True,
    "memory_bytes": 3 * GIB,
    "tree_max_bytes": 1,
    "bypass_above_bytes": 5 * MIB,
    "revalidate_s": 2.5,
    "listing_max": 10,
    "read_ahead": False,
    "source_concurrency": 7,
    "source_deadline_s": 0.25,
    "bootstrap": "mpi",
    "rendezvous": "/lus/me/meet",
    "nodes": 128,
    "launch_timeout_s": 30.0,
    "hostfile": "/lus/me/hosts",
    "key_file": "/lus/me/key",
    "node_name": "nid001",
    "listen": "hsn0",
    "port": 5000,
    "security": "none",
    "front_threads": 7,
    "fanout": 4,
    "push_fanout": 3,
    "trees": 4,
    "wait_all": True,
    "tier_memory_bytes": GIB,
    "tier_dir": "/nvme/copperfs",
    "tier_size_bytes": 100 * GIB,
    "ring": ("/lus/data", "/lus/more"),
    "domains": "name:r\\d+",
    "protect": ("/lus/data=copies:2", "/lus/data/tmp=none", "/lus/x=y=copies:3"),
    "chunk_size_bytes": 256 * KIB,
    "vnodes": 250,
    "mover_rate_bytes": 200 * MIB,
    "tier_write": "later",
    "fetch_deadline_s": 12.5,
    "fallback": False,
    "fallback_concurrency": 2,
    "hedge_after_s": 0.5,
    "heartbeat_s": 0.2,
    "dead_after_s": 5.0,
    "takeover": True,
    "takeover_by": "memory",
    "hang_after_s": 10.0,
    "takeovers_max": 3,
    "events": "/tmp/events",
    "foreground": True,
    "log_level": "debug",
    "log_file": "/tmp/log",
}


def resolve_with(
    flags: dict[str, Value] | None = None,
    environ: dict[str, str] | None = None,
    toml: str | None = None,
) -> dict[str, Resolved]:
    resolved = resolve(
        flags=flags or {},
        environ=environ or {},
        file=None if toml is None else ConfigFile("/etc/c.toml", toml),
        memory_bytes=16 * GIB,
    )
    return {entry.option.name: entry for entry in resolved}


# ---- how values are written ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17 B", 17),
        ("512k", 512 * KIB),
        ("512KiB", 512 * KIB),
        ("512KB", 512_000),
        ("10MiB", 10 * MIB),
        (" 10 mib ", 10 * MIB),
        ("1G", GIB),
        ("1.5G", 3 * GIB // 2),
        ("2T", 2048 * GIB),
    ],
)
def test_a_size_has_an_optional_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1 X", "1e3", "0x10", "1,5G", "1.G", "9" * 400, "\u0663", "1 M iB"]
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write"):
        parse_size(text)


@given(st.integers(0, 1 << 60))
def test_a_formatted_size_reads_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(1, 1023), st.sampled_from([KIB, MIB, GIB]))
def test_a_round_size_prints_short(number: int, unit: int) -> None:
    assert format_size(number * unit).startswith(f"{number} ")


@given(st.floats(0, allow_nan=False, allow_infinity=False))
def test_formatted_seconds_read_back(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "nan", "inf", "1e999", "5 min"])
def test_what_is_not_a_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds; write"):
        parse_seconds(text)


@given(st.sampled_from(OPTIONS), st.text())
def test_any_text_gives_a_value_or_a_sentence(option: Option, text: str) -> None:
    try:
        value = option.parse_variable(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - an error is one of two good outcomes
    else:
        assert option.parse_variable(option.format(value)) == value


# ---- the table -----------------------------------------------------------------------------------


def test_every_field_but_the_mount_point_is_an_option() -> None:
    assert set(BY_NAME) | {"mountpoint"} == set(get_type_hints(Settings))
    assert set(EXAMPLES) == set(BY_NAME)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_an_option_reads_back_its_default_and_other_values(option: Option) -> None:
    values = [EXAMPLES[option.name]]
    if option.name != "memory_bytes":  # its default is a rule
        values.append(option.default)
    if option.optional:
        values.append(None)
    for value in values:
        assert option.parse_variable(option.format(value)) == value


def test_the_document_is_the_table() -> None:
    written = (ROOT / "docs" / "options.md").read_text()
    assert written == markdown.render(), (
        "run: python -m copperfs.lab.manual.markdown > docs/options.md"
    )


# ---- origins -------------------------------------------------------------------------------------


def test_without_anything_given_all_are_defaults() -> None:
    resolved = resolve_with()
    assert {entry.origin for entry in resolved.values()} == {Origin.DEFAULT}
    assert resolved["memory_bytes"].value == 2 * GIB


@pytest.mark.parametrize(
    ("physical_bytes", "expected"),
    [(16 * GIB, 2 * GIB), (1024 * GIB, 8 * GIB), (8 * (100 * MIB + 5), 100 * MIB)],
)
def test_the_default_memory_is_an_eighth_up_to_8_gib(physical_bytes: int, expected: int) -> None:
    assert default_memory_bytes(physical_bytes) == expected


def test_a_later_origin_wins() -> None:
    toml = 'symlinks = "keep"\ntree-max = "1MiB"\nmemory = "1GiB"'
    environ = {"COPPERFS_TREE_MAX": "2MiB", "COPPERFS_MEMORY": "2GiB"}
    resolved = resolve_with({"memory_bytes": 3 * GIB}, environ, toml)
    assert [
        (resolved[name].value, resolved[name].origin, resolved[name].where)
        for name in ("symlinks", "tree_max_bytes", "memory_bytes", "source")
    ] == [
        ("keep", Origin.FILE, "/etc/c.toml"),
        (2 * MIB, Origin.VARIABLE, "COPPERFS_TREE_MAX"),
        (3 * GIB, Origin.FLAG, "--memory"),
        ("/", Origin.DEFAULT, "default"),
    ]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_can_come_from_a_variable(option: Option) -> None:
    value = EXAMPLES[option.name]
    resolved = resolve_with(environ={option.variable: option.format(value)})
    assert resolved[option.name].value == value
    assert resolved[option.name].origin is Origin.VARIABLE


def test_toml_values_may_be_native() -> None:
    toml = """
        shared = ["/lus", "/home/"]
        memory = 1048576
        revalidate = 3
        source-deadline = 1.5
        allow-other = true
        listing-max = 5
        log-file = "none"
    """
    resolved = resolve_with(toml=toml)
    assert resolved["shared"].value == ("/lus", "/home")
    assert resolved["memory_bytes"].value == MIB
    assert resolved["revalidate_s"].value == 3.0
    assert resolved["source_deadline_s"].value == 1.5
    assert resolved["allow_other"].value is True
    assert resolved["listing_max"].value == 5
    assert resolved["log_file"].value is None


def test_none_from_a_later_origin_wins_too() -> None:
    resolved = resolve_with({"revalidate_s": None}, {"COPPERFS_REVALIDATE": "5"})
    assert resolved["revalidate_s"].value is None


# ---- sentences -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("memroy = 5", "/etc/c.toml: there is no setting 'memroy'; did you mean memory"),
        ("zzz = 5", "there is no setting 'zzz'; 'copperfs config show' lists them"),
        ("memory = true", "memory: write a string or an integer, not True"),
        ("memory = 'lots'", "memory: 'lots' is not a size; write"),
        ("memory = -1", "memory: '-1' is not a size"),
        ("memory = 'none'", "memory: 'none' is not a size"),
        ("shared = '/lus'", "shared: write a list of strings"),
        ("shared = ['lus']", "shared: 'lus' is not an absolute path"),
        ("symlinks = 'drop'", "symlinks: 'drop' is not one of rewrite, keep"),
        ("source-concurrency = 0", "'0' is not a whole number from 1 to 1024"),
        ("source-deadline = 0", "0 seconds would let nothing succeed"),
        ("revalidate = nan", "revalidate: 'nan' is not a number of seconds"),
        ("source = ''", "source: the value is empty"),
        ("[memory]", "memory: write a string or an integer, not {}"),
        ("memory = ", "/etc/c.toml is not valid TOML: "),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(toml: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_with(toml=toml)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("/etc/c.toml")
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^COPPERFS_FALLBACK: 'maybe' is neither yes nor no"):
        resolve_with(environ={"COPPERFS_FALLBACK": "maybe"})


def test_variables_of_others_are_left_alone() -> None:
    resolve_with(environ={"COPPERFS_CONFIG": "x", "COPPERFS_UNKNOWN": "x"})


# ---- settings that have to fit together ----------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"tier_size_bytes": GIB},
            "--tier-size says how much of its disk is used, and there is no --tier-dir: give one, "
            "or leave --tier-size out",
        ),
        ({"mover_rate_bytes": 1}, "--mover-rate says how fast is written to it, and there is no"),
        ({"tier_write": "later"}, "--tier-write says when is written to it, and there is no"),
        (
            {"tier_dir": "/nvme", "tier_size_bytes": MIB},
            "--tier-size 1 MiB has no room for one chunk: give at least 1032 KiB, or leave",
        ),
        (
            {"tier_dir": "/mnt/nvme"},
            "--tier-dir /mnt/nvme lies in the mount point: give a directory outside /mnt",
        ),
        ({"tier_dir": "/mnt"}, "--tier-dir /mnt lies in the mount point"),
    ],
)
def test_a_tier_that_cannot_be_is_told_in_one_sentence(
    values: dict[str, Value], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_tier(settings_of("/mnt", tuple(resolve_with(values).values())))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("values", "has_tier", "tier_bytes"),
    [
        ({}, True, 512 * MIB),
        ({"tier_memory_bytes": 0}, False, 0),
        ({"tier_dir": "/mnt2", "tier_size_bytes": GIB}, True, 512 * MIB + GIB),
        ({"tier_dir": "/n", "tier_size_bytes": 2 * MIB, "tier_memory_bytes": 0}, True, 2 * MIB),
        ({"tier_dir": "/n", "mover_rate_bytes": 5}, True, 512 * MIB),
    ],
)
def test_a_tier_is_memory_and_disk(
    values: dict[str, Value], has_tier: bool, tier_bytes: int
) -> None:
    settings = settings_of("/mnt", tuple(resolve_with(values).values()))
    check_tier(settings)
    assert (settings.has_tier, settings.tier_bytes) == (has_tier, tier_bytes)


# ---- on the way to the daemon --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/mnt", "/mnt/\udcff\udc80 \N{SNOWMAN}"])
def test_settings_survive_json(name: str) -> None:
    resolved = tuple(resolve_with({**EXAMPLES, "source": name}).values())
    settings = settings_of(name, resolved)
    text = settings.to_json()
    assert text.isascii()
    assert Settings.from_json(text) == settings
    assert settings.shared == ("/lus", "/home")
    assert settings.mountpoint == name
