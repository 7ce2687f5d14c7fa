"""The list of documents: filters, a page of it at a time, and how many there are in each state."""

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
"""Where a document stands in the list: its moment of creation, and its id."""


@dataclass(frozen=True)
class Filter:
    """Which documents; what is empty matches all. `name`: in the file's name, in any case."""

    statuses: frozenset[DocumentStatus] = frozenset()
    name: str = ""
    created_from: datetime | None = None
    created_before: datetime | None = None

    def where(self) -> list[ColumnElement[bool]]:
        """The same in SQL."""
        found: list[ColumnElement[bool]] = []
        if self.statuses:
            found.append(DOCUMENTS.c.status.in_([int(status) for status in self.statuses]))
        if self.name:
            found.append(mentions(DOCUMENTS.c.filename, self.name))
        if self.created_from:
            found.append(DOCUMENTS.c.created_at >= self.created_from)
        if self.created_before:
            found.append(DOCUMENTS.c.created_at < self.created_before)
        return found

    def among(self, statuses: Collection[DocumentStatus]) -> "Filter | None":
        """Those of them that are in one of these states; None if there can be none."""
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
    """Documents, newest first. `after`: beyond the one with this key; `before`: those just above it."""
    key = (DOCUMENTS.c.created_at, DOCUMENTS.c.id)
    order = [column.asc() if before else column.desc() for column in key]
    beyond = []
    if after is not None:
        beyond.append(tuple_(*key) < tuple_(*after, types=[column.type for column in key]))
    if before is not None:
        beyond.append(tuple_(*key) > tuple_(*before, types=[column.type for column in key]))

    def first(some: Filter) -> Select[tuple[datetime, str]]:
        return select(*key).where(*some.where(), *beyond).order_by(*order).limit(limit + offset)

    with context.db.read() as session:
        if len(which.statuses) > 1:
            # One state after the other: together they would be sorted, and there may be a hundred thousand.
            each = [replace(which, statuses=frozenset({status})) for status in sorted(which.statuses)]
            merged = union_all(*(select(first(one).subquery()) for one in each)).subquery()
            ordered = [merged.c[column.name].asc() if before else merged.c[column.name].desc() for column in key]
            ids = session.scalars(select(merged.c.id).order_by(*ordered).limit(limit).offset(offset)).all()
            query = select(DOCUMENTS).where(DOCUMENTS.c.id.in_(ids)).order_by(*order)
        else:
            query = select(DOCUMENTS).where(*which.where(), *beyond).order_by(*order).limit(limit).offset(offset)
        rows = session.execute(query).all()
    return [document_view(context, row) for row in (reversed(rows) if before else rows)]


def count_documents(context: Context, which: Filter) -> int:
    """How many documents there are of these."""
    query = select(func.count()).select_from(DOCUMENTS).where(*which.where())
    with context.db.read() as session:
        return int(session.execute(query).scalar_one())


def count_by_status(context: Context, which: Filter | None = None) -> dict[DocumentStatus, int]:
    """How many of these there are in each state, whatever states the filter names; those without any are left out."""
    which = which or Filter()
    # Names are not in the index of states: whoever reads them all reads the table in its own order.
    status = DOCUMENTS.c.status + 0 if which.name else DOCUMENTS.c.status
    with context.db.read() as session:
        counted = count_by(session, status, *replace(which, statuses=frozenset()).where())
    return {DocumentStatus(status): count for status, count in counted.items()}
