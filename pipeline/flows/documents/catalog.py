"""The list of documents: its filter, its pages, and counts by state."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import ColumnElement, Select, func, select, tuple_, union_all

from pipeline.engine.metrics import count_by
from pipeline.engine.tables import mentions
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.queries import document_view
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.views import DocumentView
from pipeline.storage.context import Context

Key = tuple[datetime, str]
"""A document's place in the list: its time of creation and its id."""


@dataclass(frozen=True)
class Filter:
    """Conditions on documents; an empty field matches all. `name` is part of the file's name, in any case."""

    statuses: frozenset[DocumentStatus] = frozenset()
    name: str = ""
    created_from: datetime | None = None
    created_before: datetime | None = None

    def where(self) -> list[ColumnElement[bool]]:
        """Return the conditions on rows of `DOCUMENTS`, to combine with AND; empty without conditions. `created_from`
        is included, `created_before` is not."""
        conditions: list[ColumnElement[bool]] = []
        if self.statuses:
            conditions.append(DOCUMENTS.c.status.in_([int(status) for status in self.statuses]))
        if self.name:
            conditions.append(mentions(DOCUMENTS.c.filename, self.name))
        if self.created_from:
            conditions.append(DOCUMENTS.c.created_at >= self.created_from)
        if self.created_before:
            conditions.append(DOCUMENTS.c.created_at < self.created_before)
        return conditions

    def among(self, statuses: Collection[DocumentStatus]) -> "Filter | None":
        """Return a filter that also requires one of these states; None if no document can match."""
        both = frozenset(statuses) & self.statuses if self.statuses else frozenset(statuses)
        return replace(self, statuses=both) if both else None


def documents(
    context: Context,
    which: Filter = Filter(),
    *,
    limit: int = 50,
    offset: int = 0,
    after: Key | None = None,
    before: Key | None = None,
) -> list[DocumentView]:
    """Return up to `limit` matching documents, newest first, after skipping `offset`.

    `after`: only documents older than this key. `before`: only newer ones, and of these the nearest to the key.
    """
    key = (DOCUMENTS.c.created_at, DOCUMENTS.c.id)
    order = [column.asc() if before else column.desc() for column in key]
    beyond = []
    if after is not None:
        beyond.append(tuple_(*key) < tuple_(*after, types=[column.type for column in key]))
    if before is not None:
        beyond.append(tuple_(*key) > tuple_(*before, types=[column.type for column in key]))

    def first(listed: Filter) -> Select[tuple[datetime, str]]:
        return select(*key).where(*listed.where(), *beyond).order_by(*order).limit(limit + offset)

    with context.db.read() as session:
        if len(which.statuses) > 1:
            # One subquery for each state reads the index in order; one for all would sort perhaps 100,000 rows.
            each = [replace(which, statuses=frozenset({status})) for status in sorted(which.statuses)]
            merged = union_all(*(select(first(of_status).subquery()) for of_status in each)).subquery()
            ordered = [merged.c[column.name].asc() if before else merged.c[column.name].desc() for column in key]
            ids = session.scalars(select(merged.c.id).order_by(*ordered).limit(limit).offset(offset)).all()
            query = select(DOCUMENTS).where(DOCUMENTS.c.id.in_(ids)).order_by(*order)
        else:
            query = select(DOCUMENTS).where(*which.where(), *beyond).order_by(*order).limit(limit).offset(offset)
        rows = session.execute(query).all()
    return [document_view(context, row) for row in (reversed(rows) if before else rows)]


def count_documents(context: Context, which: Filter) -> int:
    """Count the documents that match the filter."""
    query = select(func.count()).select_from(DOCUMENTS).where(*which.where())
    with context.db.read() as session:
        return int(session.execute(query).scalar_one())


def count_by_status(context: Context, which: Filter | None = None) -> dict[DocumentStatus, int]:
    """Count the matching documents by state. Ignores the filter's states, and leaves out states without documents."""
    which = which or Filter()
    # `+ 0` keeps the database off the index of states, which lacks names: scanning the table is faster.
    status = DOCUMENTS.c.status + 0 if which.name else DOCUMENTS.c.status
    with context.db.read() as session:
        counted = count_by(session, status, *replace(which, statuses=frozenset()).where())
    return {DocumentStatus(status): count for status, count in counted.items()}
