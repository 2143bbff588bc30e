"""Loads all extension modules of the bundle that this process was started from."""

import importlib

from copperfs.startup.bundle import EXTENSION, started_from


def main() -> None:
    bundle = started_from()
    assert bundle is not None
    for name, (kind, *_) in bundle.index["modules"].items():
        if kind & EXTENSION:
            importlib.import_module(name)


if __name__ == "__main__":
    main()
