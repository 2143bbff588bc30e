"""Imports all modules of the bundle that this process was started from, and prints those of the
standard library that this took."""

import importlib
import sys

from copperfs.startup.bundle import started_from


def main() -> None:
    bundle = started_from()
    assert bundle is not None
    for name in bundle.index["modules"]:
        importlib.import_module(name)
    taken = [each for each in sys.modules if each.partition(".")[0] in sys.stdlib_module_names]
    sys.stdout.write("\n".join(sorted(taken)))


if __name__ == "__main__":
    main()
