"""Commits whose answer is lost: the database commits, but the client sees a broken connection."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from pipeline.storage.database import Database


def lose_answers(monkeypatch: pytest.MonkeyPatch, db: Database, times: int = 1, *, committed: bool = True) -> list[int]:
    """Break the connection after, or before, the next `times` commits. Returns a list that grows with each commit."""
    original, failures, commits = db.transaction, [None] * times, []

    @contextmanager
    def transaction(**options: Any) -> Iterator[Session]:
        broken = OperationalError("COMMIT", {}, ConnectionError("the connection was lost"))
        with original(**options) as session:
            yield session
            if failures and not committed:
                failures.pop()
                raise broken
        commits.append(len(commits))
        if failures:
            failures.pop()
            raise broken

    monkeypatch.setattr(db, "transaction", transaction)
    return commits
