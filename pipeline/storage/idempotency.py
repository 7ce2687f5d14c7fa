"""Requests that may be sent twice: the first answer is kept by its Idempotency-Key, and returned again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Index, LargeBinary, String, Text, delete, func, or_, select, update
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.errors import UserError
from pipeline.engine.tables import Base, UtcDateTime, insert_if_absent, table_of
from pipeline.engine.transaction import Tx
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention

RUNNING_S = 180.0
"""How long a request counts as running. Longer than any request takes: after that its process counts as dead."""


class IdempotentRequest(Base):
    """One request, identified by its sender and its key."""

    __tablename__ = "idempotent_requests"
    __table_args__ = (Index("ix_idempotent_requests_expires_at", "expires_at"),)

    owner: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    """Hash of method, path and content, which identifies the request."""
    claim_id: Mapped[str | None] = mapped_column(String(32))
    """The claim of the process that works on it; none once it is answered."""
    running_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    status: Mapped[int | None]
    headers: Mapped[str] = mapped_column(Text, default="")
    """JSON: name and value of each header of the answer."""
    body: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


REQUESTS = table_of(IdempotentRequest)


class AnotherRequest(UserError):
    """The key was used before, for another request."""

    def __init__(self) -> None:
        super().__init__("this Idempotency-Key was used for another request: use a new one", code="idempotency_key")


class StillRunning(UserError):
    """The first request with this key has not been answered yet."""

    def __init__(self) -> None:
        super().__init__("the first request with this Idempotency-Key is still running", code="still_running")


@dataclass(frozen=True)
class Answer:
    """The answer to a request. `headers`: JSON."""

    status: int
    headers: str
    body: bytes


@dataclass(frozen=True)
class KeyClaim:
    """A claimed request: `settle` or `release` it."""

    owner: str
    key: str
    claim_id: str


def begin(context: Context, owner: str, key: str, fingerprint: str, keep: timedelta) -> KeyClaim | Answer:
    """Claim the request, or return its earlier answer. Raises `AnotherRequest` if its key came with another
    `fingerprint`, and `StillRunning` during `RUNNING_S` after another claim. `keep`: how long to keep the answer."""
    claim_id, now = uuid4().hex, context.db.now()
    running = {"claim_id": claim_id, "running_until": now + timedelta(seconds=RUNNING_S)}
    fresh = {"fingerprint": fingerprint, **running, "created_at": now, "expires_at": now + keep}
    own = [REQUESTS.c.owner == owner, REQUESTS.c.key == key]

    def work(tx: Tx) -> KeyClaim | Answer:
        tx.execute(delete(REQUESTS).where(*own, REQUESTS.c.expires_at <= now))
        row = None
        while row is None:  # on PostgreSQL, another request may release the row in between
            insert_if_absent(tx, REQUESTS, {"owner": owner, "key": key, "headers": "", "body": b"", **fresh})
            row = tx.execute(select(REQUESTS).where(*own)).one_or_none()
        if row.fingerprint != fingerprint:
            raise AnotherRequest
        if row.status is not None:
            return Answer(row.status, row.headers, row.body)
        free = or_(REQUESTS.c.claim_id == claim_id, REQUESTS.c.running_until <= now)
        claim = update(REQUESTS).where(*own, REQUESTS.c.status.is_(None), free).values(**running)
        if not tx.execute(claim.returning(REQUESTS.c.key)).first():
            raise StillRunning
        return KeyClaim(owner, key, claim_id)

    return context.db.run(work)


def settle(context: Context, claim: KeyClaim, answer: Answer) -> None:
    """Store the answer for repeated requests. Does nothing if the claim was lost."""
    values = {"status": answer.status, "headers": answer.headers, "body": answer.body, "claim_id": None}
    context.db.run(lambda tx: tx.execute(update(REQUESTS).where(*_own(claim)).values(**values)))


def release(context: Context, claim: KeyClaim) -> None:
    """Delete the request, which did nothing, so that the same key may be used again."""
    context.db.run(lambda tx: tx.execute(delete(REQUESTS).where(*_own(claim))))


def _own(claim: KeyClaim) -> Sequence[Any]:
    return REQUESTS.c.owner == claim.owner, REQUESTS.c.key == claim.key, REQUESTS.c.claim_id == claim.claim_id


def expired(context: Context) -> Retention:
    """Return the retention rule of expired answers."""
    over = REQUESTS.c.expires_at <= context.db.now()

    def due(context: Context) -> int:
        with context.db.read() as session:
            return int(session.execute(select(func.count()).select_from(REQUESTS).where(over)).scalar_one())

    def remove(context: Context) -> int:
        removal = delete(REQUESTS).where(over).returning(REQUESTS.c.key)
        return context.db.run(lambda tx: len(tx.execute(removal).all()))

    hours = context.settings.api.idempotency_hours
    return Retention("answers to idempotent requests", f"{hours:g} hours", due, remove)
