"""Fixtures for node processes, which end with their test."""

from collections.abc import Iterator

import pytest

from tests.bootstrap.helpers import Nodes, starting_nodes


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with starting_nodes() as started:
        yield started
