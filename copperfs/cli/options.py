"""Options: makes flags from the table of options, and settings from flags, the TOML file, the
environment and the available memory."""

import argparse
import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, TypeVar

from copperfs.config.settings import (
    OPTIONS,
    SWITCH,
    ConfigFile,
    Option,
    Resolved,
    Settings,
    Value,
    resolve,
    settings_of,
)
from copperfs.launch.available_memory import memory_for_us
from copperfs.model.errors import ConfigError

Parsed = TypeVar("Parsed")

FILE_VARIABLE = "COPPERFS_CONFIG"
FILE_DEFAULT = "~/.config/copperfs.toml"


def add_option_flags(parser: argparse.ArgumentParser, *, without: Container[str] = ()) -> None:
    """Add ``--config`` and a flag for every setting, but *without* those that the command sets
    itself."""
    _add_config_flag(parser)
    add_setting_flags(parser, without=without)


def _add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML file with settings (${FILE_VARIABLE}, else {FILE_DEFAULT} if it exists)",
    )


def add_setting_flags(parser: argparse.ArgumentParser, *, without: Container[str] = ()) -> None:
    offered = [option for option in OPTIONS if option.name not in without]
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


def resolve_options(arguments: argparse.Namespace) -> tuple[Resolved, ...]:
    memory = memory_for_us()
    return resolve(
        flags=given_flags(arguments),
        environ=os.environ,
        file=_read_file(arguments.config),
        memory_bytes=memory.size_bytes,
        memory_where=memory.where,
    )


def resolve_settings(mountpoint: str, arguments: argparse.Namespace) -> Settings:
    return settings_of(mountpoint, resolve_options(arguments))


def _add_flag(parser: argparse._ArgumentGroup, option: Option) -> None:
    # argparse expands % in help texts.
    text = f"{option.help} Default: {default_text(option)}.".replace("%", "%%")
    how: dict[str, Any]
    if option.kind is SWITCH:
        how = {"action": argparse.BooleanOptionalAction}
    else:
        how = {"type": argument_type(option.parse), "metavar": option.kind.metavar}
        how |= {"action": "extend", "nargs": "+"} if option.multi else {}
    parser.add_argument(option.flag, dest=option.name, default=argparse.SUPPRESS, help=text, **how)


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
