"""Imports all modules of the bundle that this process was started from, and tells in JSON what that
took of the standard library, and what it looked for there and did not find (``msvcrt``)."""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from copperfs.startup.bundle import OF_JYTHON, started_from


class _Missing:
    """The last finder that is asked."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None and (name in sys.stdlib_module_names or name == OF_JYTHON):
            self.names.add(name)
        return None


def main() -> None:
    bundle = started_from()
    assert bundle is not None
    missing = _Missing()
    sys.meta_path.append(missing)
    for name in bundle.index["modules"]:
        importlib.import_module(name)
    directory: str = sys._stdlib_dir  # type: ignore[attr-defined]
    taken = sorted(
        name
        for name, module in sys.modules.items()
        if name.partition(".")[0] in sys.stdlib_module_names
        and os.path.dirname(getattr(module, "__file__", None) or "").startswith(directory)
        and "Frozen" not in type(module.__loader__).__name__ + repr(module.__loader__)
    )
    json.dump({"modules": taken, "missing": sorted(missing.names)}, sys.stdout)


if __name__ == "__main__":
    main()
