"""A fleet of gateways and nodes over one Redis, and SQLite for the tokens."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.faults.nodes.fleet import Fleet
from tests.support.gateway import token
from tests.support.stack import Stack


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def fleet(data_dir: Path, context: Context) -> Iterator[Fleet]:
    """A fleet without running processes."""
    secrets = (token(context, TokenKind.NODE, "nodes"), token(context, TokenKind.SESSION, "sessions"))
    settings = context.settings
    with Stack(data_dir, settings.database_url, settings.redis_url) as stack:
        fleet = Fleet(stack, context, data_dir, *secrets)
        yield fleet
        # Captured by pytest, and shown if the test failed.
        sys.stdout.write(fleet.describe())
