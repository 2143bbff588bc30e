"""State of the bundles (``bundle.py``) of this installation, for ``copperfs doctor``."""

import os
from enum import Enum

from copperfs.startup.bundle import (
    FILE,
    standard_library,
    started_from,
    this_python,
    version_of_standard_library,
)


class BundleState(Enum):
    USED = "this process was started from it"
    OUTDATED = "it has other dependencies than are installed"
    MISSING = "the build could not make it"
    EDITABLE = "the modules may change"


class LibraryState(Enum):
    """Of the bundle of the standard library."""

    USED = "Python was started from memory, and its modules come from the bundle"
    USABLE = "it is of this Python"
    OTHER_PYTHON = "it is of another Python"
    MISSING = "the build could not make it"


def bundle_state() -> BundleState:
    if started_from() is not None:
        return BundleState.USED
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.exists(os.path.join(here, FILE)):
        return BundleState.OUTDATED
    packages = os.path.dirname(os.path.dirname(here))
    is_editable = os.path.basename(packages) not in ("site-packages", "dist-packages")
    return BundleState.EDITABLE if is_editable else BundleState.MISSING


def library_state() -> LibraryState:
    if standard_library() is not None:
        return LibraryState.USED
    version = version_of_standard_library()
    if version is None:
        return LibraryState.MISSING
    return LibraryState.USABLE if version == this_python() else LibraryState.OTHER_PYTHON
