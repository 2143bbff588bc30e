"""Version of the wire format. A launch compares it before it needs any message."""

from copperfs import __version__

MAGIC = b"cpf"
VERSION = 6
"""Increment it when ``LAYOUTS`` in ``codec.py`` changes."""


def mismatch_sentence(peer: str, version: int, release: str, me: str) -> str:
    """*release* may be empty."""
    theirs = f"copperfs {release}".rstrip()
    return (
        f"{peer} runs {theirs} (wire version {version}) and {me} runs copperfs {__version__} (wire "
        f"version {VERSION}): start all nodes from one installation"
    )
