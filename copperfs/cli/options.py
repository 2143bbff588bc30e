"""Options: makes flags from the table of options, and settings from flags, the TOML file, the
environment and the available memory."""

import argparse
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from copperfs.cli.command_parser import CommandParser, HelpAll, suggestion
from copperfs.cli.output import print_warning
from copperfs.cli.repeated_values import RepeatableAction
from copperfs.config.settings import (
    MIB,
    OPTIONS,
    RUN_ONLY,
    SIZE,
    SWITCH,
    ConfigFile,
    Option,
    Origin,
    Resolved,
    Settings,
    Value,
    bytes_text,
    resolve,
    settings_of,
)
from copperfs.launch.available_memory import memory_for_us
from copperfs.model.errors import ConfigError, UsageError

Parsed = TypeVar("Parsed")

FILE_VARIABLE = "COPPERFS_CONFIG"
FILE_DEFAULT = "~/.config/copperfs.toml"
# Variables that are no settings.
OTHER_VARIABLES = frozenset(
    [FILE_VARIABLE, "COPPERFS_MOUNTPOINT", "COPPERFS_RUN", "COPPERFS_JOIN_SOCKET"]
)
# What ``--help`` shows of the settings; ``--help-all`` and docs/options.md have all.
EVERYDAY: dict[str, str] = {
    "config": "TOML file with settings",
    "mount_options": "settings, as mount.fuse takes them",
    "source": "the directory to show (/)",
    "shared": "a path to cache; repeatable (the shared filesystems)",
    "allow_other": "let other users in",
    "memory_bytes": "budget of the caches (an eighth of the memory)",
    "tree_max_bytes": "files up to this size are cached whole (10 MiB)",
    "revalidate_s": "ask the source again after this time (never)",
    "ring": "a dataset to spread over the nodes; repeatable",
    "tier_dir": "a directory on NVMe that also keeps chunks",
    "tier_size_bytes": "how much of its disk it may take (half)",
    "rendezvous": "a shared directory where nodes meet without MPI",
    "nodes": "how many nodes meet there",
    "hostfile": "a file that names all nodes",
    "key_file": "their secret, made by copperfs keygen",
    "listen": "the address or interface that other nodes reach",
    "in_place": "show files at their own paths (auto)",
    "metrics": "statistics for Prometheus",
    "foreground": "stay in the foreground until unmounted",
    "log_level": "the least severe messages to log (info)",
    "log_file": "append messages to this file",
}
# What ``mount.fuse`` is given, and every mount of copperfs is.
HELD_ANYWAY = frozenset(
    [
        *("ro", "nosuid", "nodev", "noatime", "exec", "async", "default_permissions"),
        *("defaults", "auto", "noauto", "user", "nouser", "_netdev"),
    ]
)
REFUSED_OPTIONS = {
    "rw": "the mount is read-only",
    "allow_root": "give allow_other, or none",
    "suid": "programs of the mount never change their user",
    "dev": "devices of the mount cannot be opened",
}
# They tune the protocol, for tests and for the authors' measurements. They go on working.
INTERNAL = frozenset(
    [
        *("hedge_after_s", "heartbeat_s", "dead_after_s", "fallback_concurrency", "takeovers_max"),
        *("listing_max", "front_threads", "push_fanout", "vnodes"),
    ]
)


def add_option_flags(parser: argparse.ArgumentParser, *, without: Container[str] = ()) -> None:
    """Add ``--config`` and a flag for every setting, but *without* those that the command sets
    itself."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML file with settings (${FILE_VARIABLE}, or {FILE_DEFAULT})",
    )
    add_setting_flags(parser, without=without)


def add_setting_flags(parser: argparse.ArgumentParser, *, without: Container[str] = ()) -> None:
    offered = [option for option in OPTIONS if option.name not in without]
    if isinstance(parser, CommandParser):
        parser.everyday = EVERYDAY
        parser.hidden_settings = frozenset(
            option.name for option in offered if option.name not in EVERYDAY
        )
        parser.add_argument("--help-all", action=HelpAll, help="explain all options")
    for group in dict.fromkeys(option.group for option in offered):
        arguments = parser.add_argument_group(group.lower())
        for option in offered:
            if option.group == group:
                _add_flag(arguments, option)


def given_flags(arguments: argparse.Namespace) -> dict[str, Value]:
    flags: dict[str, Value] = {}
    for option in OPTIONS:
        # A flag not given leaves no attribute, since None is a value.
        if option.name in arguments:
            value = getattr(arguments, option.name)
            flags[option.name] = tuple(value) if option.multi else value
    return flags


def take_mount_options(arguments: argparse.Namespace) -> None:
    """Those of ``-o``, as if they were flags; a flag wins."""
    words = [word for text in arguments.mount_options for word in text.split(",") if word]
    for word in words:
        name, equals, text = word.partition("=")
        key = name.replace("_", "-")
        if word in HELD_ANYWAY:
            continue
        option = next((each for each in OPTIONS if key in (each.key, f"no-{each.key}")), None)
        if option is None or option.name in RUN_ONLY:
            close = suggestion(key, [each.key for each in OPTIONS])
            why = REFUSED_OPTIONS.get(word) or (close and f"did you mean {close}?")
            raise UsageError(
                f"mount: there is no -o {name}" + (f"; {why}" if why else ""),
                "see: copperfs mount --help",
            )
        if option.kind is SWITCH and not equals:
            text = "no" if key != option.key else "yes"
        try:
            value = option.parse(text)
        except ValueError as error:
            raise UsageError(f"mount: -o {word}: {error}") from None
        if option.multi:
            setattr(arguments, option.name, [*getattr(arguments, option.name, ()), value])
        elif option.name not in arguments:
            setattr(arguments, option.name, value)


def resolve_options(arguments: argparse.Namespace) -> tuple[Resolved, ...]:
    memory = memory_for_us()
    file = _read_file(arguments.config)
    resolved = resolve(
        flags=given_flags(arguments),
        environ=os.environ,
        file=file,
        memory_bytes=memory.size_bytes,
        memory_where=memory.where,
    )
    warnings = [
        *unknown_variables(os.environ),
        *_bare_sizes(resolved, vars(arguments).get(BARE, {}), os.environ, file),
        *_too_large(resolved, memory.size_bytes, memory.where),
    ]
    if warnings and is_first_process():
        for each in warnings:
            print_warning(each)
    return resolved


def is_first_process() -> bool:
    """Whether it speaks for the thousands that a launcher may have started."""
    from copperfs.launch.launcher_variables import look_around

    return look_around(os.environ).rank in (None, 0)


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """A misspelled variable would be as if it were not set."""
    known = {option.variable for option in OPTIONS} | OTHER_VARIABLES
    for name in sorted(environ):
        if name.startswith("COPPERFS_") and name not in known:
            close = suggestion(name[9:], [each[9:] for each in known])
            advice = f"did you mean COPPERFS_{close}?" if close else "see: copperfs config show"
            yield f"{name} is no variable of copperfs, and has no effect; {advice}"


def _bare_sizes(
    resolved: Sequence[Resolved],
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: ConfigFile | None,
) -> Iterator[str]:
    """A small number without a unit was probably meant in a larger one."""
    for each in resolved:
        if each.option.kind is not SIZE or not isinstance(each.value, int):
            continue
        text = ""
        if each.origin is Origin.FLAG:
            text = flags.get(each.option.name, "")
        elif each.origin is Origin.VARIABLE:
            text = environ[each.option.variable]
        elif each.origin is Origin.FILE and file is not None:
            pattern = rf"^\s*{each.option.key}\s*=\s*[\"']?(\d+)[\"']?\s*(?:#.*)?$"
            found = re.search(pattern, file.text, re.MULTILINE)
            text = found[1] if found else ""
        if text.strip().isdecimal() and 0 < each.value < MIB:
            name = each.where if each.origin is not Origin.FILE else each.option.key
            yield f"{name} {text} is {each.value:,} bytes; write the unit, as in {text}MiB"


def _too_large(resolved: Sequence[Resolved], memory_bytes: int, memory_where: str) -> Iterator[str]:
    for each in resolved:
        if each.option.name not in ("memory_bytes", "tier_memory_bytes"):
            continue
        if isinstance(each.value, int) and each.value > memory_bytes:
            yield (
                f"{each.option.flag} {each.text} is more than this node has: "
                f"{bytes_text(memory_bytes)} ({memory_where})"
            )


def resolve_settings(mountpoint: str, arguments: argparse.Namespace) -> Settings:
    return settings_of(mountpoint, resolve_options(arguments))


# Where the texts of sizes without a unit are kept.
BARE = "bare_sizes"


def _add_flag(parser: argparse._ArgumentGroup, option: Option) -> None:
    # argparse expands % in help texts.
    text = f"{option.help} Default: {default_text(option)}.".replace("%", "%%")
    how: dict[str, Any]
    if option.kind is SWITCH:
        how = {"action": argparse.BooleanOptionalAction}
    else:
        how = {"type": argument_type(option.parse), "metavar": option.kind.metavar}
        if option.multi:
            how["action"] = RepeatableAction
        elif option.kind is SIZE:
            how = {"action": _SizeAction, "metavar": option.kind.metavar}
            how["parse"] = argument_type(option.parse)
    if option.name in INTERNAL:
        text = argparse.SUPPRESS
    flags = ("-f", option.flag) if option.name == "foreground" else (option.flag,)
    parser.add_argument(*flags, dest=option.name, default=argparse.SUPPRESS, help=text, **how)


class _SizeAction(argparse.Action):
    """Keeps also the text, since only it tells whether there was a unit."""

    def __init__(self, *arguments: Any, parse: Callable[[str], Value], **how: Any) -> None:
        super().__init__(*arguments, **how)
        self.parse = parse

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        try:
            setattr(namespace, self.dest, self.parse(values))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        texts = {**getattr(namespace, BARE, {}), self.dest: values}
        setattr(namespace, BARE, texts)


def default_text(option: Option) -> str:
    return option.default_text or option.format(option.default)


def argument_type(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Have argparse report the text of a ValueError."""

    def parsed(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _read_file(flag: str | None) -> ConfigFile | None:
    """The requested file must exist, the default one need not."""
    asked_for = flag or os.environ.get(FILE_VARIABLE)
    path = Path(asked_for or FILE_DEFAULT).expanduser()
    try:
        return ConfigFile(str(path), path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if asked_for is None:
            return None
        origin = "--config" if flag else FILE_VARIABLE
        raise ConfigError(f"{path}: no such file; correct {origin} or leave it out") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8, as TOML has to be") from None
