"""Commands of the lab; ``cli/main.py`` finds them here. A command is the module of its name, except
those about single nodes of a cluster."""

from importlib import import_module
from typing import Any

NODE_COMMANDS = ("kill", "start", "stop", "cont", "cut", "drop", "heal")
COMMANDS = (
    *("cluster up", "cluster status", "cluster down"),
    *(f"cluster {each}" for each in NODE_COMMANDS),
    *("pfs-sim", "pfs-ask"),
    *("sim run", "sim sweep", "sim replay", "sim calibrate", "sim ring", "sim start"),
)


def command_named(name: str) -> Any:
    group, _, word = name.partition(" ")
    if group == "cluster" and word in NODE_COMMANDS:
        return import_module(f"{__name__}.cluster_nodes").COMMANDS[word]
    return import_module(f"{__name__}.{name.replace(' ', '_').replace('-', '_')}")
