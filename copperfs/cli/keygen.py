"""``copperfs keygen``: writes the secret that the nodes of a hostfile share."""

import argparse

NAME = "keygen"
HELP = "write a new secret for --hostfile and --key-file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="must not exist yet; all nodes read it")


def run(arguments: argparse.Namespace) -> int:
    from copperfs.launch.curve_keys import write_key_file

    write_key_file(arguments.file)
    return 0
