"""The arguments that the commands about single nodes of a cluster share."""

import argparse


def add_node(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one node of a cluster."""
    parser.add_argument("node", metavar="NODE", help="node3, or just 3")
    _add_directory(parser)


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one or more nodes of a cluster."""
    parser.add_argument("nodes", nargs="+", metavar="NODE", help="node3, or just 3")
    _add_directory(parser)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", required=True, metavar="D", help="where the cluster lives")
