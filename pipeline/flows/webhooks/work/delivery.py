"""Claims a delivery, sends it, and settles it with the endpoint's answer.

Endpoints take turns: working ones come before failing ones, and the endpoint tried longest ago comes first. A failing
endpoint pauses after each failure and has at most one delivery under way. Endpoints that fail without an answer share
one delivery, and those with the fewest failures come first: dead endpoints do not hold up living ones.

Callbacks leave one place to webhooks, and those of a caller with the fewest deliveries under way come first: a caller
whose receivers are slow delays no other caller.
"""

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import and_, case, func, insert, or_, select, update

from pipeline.engine import outbox, work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.outbox import Event
from pipeline.engine.retry import Policy
from pipeline.engine.settled import Settled
from pipeline.engine.tables import storable
from pipeline.engine.traces import message_of
from pipeline.engine.transaction import ReadTx, Tx
from pipeline.engine.views import view_of
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.webhooks.models import ATTEMPTS, DELIVERIES, ENDPOINTS, MAX_ERROR, OWNER_CHARS
from pipeline.flows.webhooks.rules import endurance, message
from pipeline.flows.webhooks.rules.callback import Callback
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.states import DELIVERY, ENDED, DeliveryEvent, DeliveryStatus
from pipeline.flows.webhooks.work.fanout import lock
from pipeline.flows.webhooks.work.post import Answer, post
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
LEASE_MARGIN_S = 30.0


def _policy(settings: Settings) -> Policy:
    return Policy(tuple(webhooks_of(settings).backoff_s))


WORK = Work(
    "delivery",
    DELIVERIES,
    DELIVERY,
    claim=DeliveryEvent.CLAIM,
    done=DeliveryEvent.DONE,
    fail=DeliveryEvent.FAIL,
    wait=DeliveryEvent.WAIT,
    give_back=DeliveryEvent.GIVE_BACK,
    scope=DELIVERIES.c.endpoint_id,
    lock=lock,
    order=(DELIVERIES.c.id,),
    policy=_policy,
    lease_s=lambda settings: webhooks_of(settings).timeout_s + LEASE_MARGIN_S,
    lost="the worker died during this delivery",
)


_UNANSWERED = select(DELIVERIES.c.id).where(
    DELIVERIES.c.endpoint_id == ENDPOINTS.c.id,
    DELIVERIES.c.status.in_([DeliveryStatus.PENDING, DeliveryStatus.SENDING]),
    DELIVERIES.c.attempts > 0,
    DELIVERIES.c.response_status.is_(None),
)
SILENT = and_(ENDPOINTS.c.failures > 0, _UNANSWERED.exists())
"""Selects failing endpoints that did not answer: a delivery to them occupies a worker until the timeout."""


@dataclass(frozen=True)
class Unit:
    """A claimed delivery with the data to send it."""

    id: int
    endpoint_id: str
    attempts: int
    claim_id: str
    url: str
    secrets: tuple[str, ...]
    type: str
    seq: int | None
    created_at: datetime
    event: Event | None
    callback: Callback | None = None
    content: str | None = None

    @property
    def message_id(self) -> str:
        """The message's id, which is the same at each attempt and replay, so that receivers can detect duplicates."""
        if self.content is not None:
            return f"callback_{self.id}"
        return f"test_{self.id}" if self.seq is None else f"evt_{self.seq}"

    def body(self) -> bytes:
        """Return the body of the message. Raises `UnitError` if the event is deleted."""
        if self.content is not None:
            return self.content.encode()
        if self.seq is None:
            return message.body(message.TEST, self.created_at, {"endpoint": self.endpoint_id})
        if self.event is None:
            raise UnitError("retention has deleted the event", kind=ErrorKind.PERMANENT, code="expired")
        event = self.event
        scope = {"id": event.scope_id, "flow": event.flow, "kind": event.kind, "status": event.status}
        return message.body(event.type, event.created_at, {**event.data, **scope})


def ready(tx: ReadTx) -> list[Any]:
    """Return the endpoints that can take a delivery now, in the order of their turns: `id`, `failures`, and `silent`,
    whether they failed without an answer."""
    deliveries = select(DELIVERIES.c.id).where(DELIVERIES.c.endpoint_id == ENDPOINTS.c.id)
    under_way = select(func.count()).where(DELIVERIES.c.endpoint_id == ENDPOINTS.c.id, WORK.working).scalar_subquery()
    rules = webhooks_of(tx.settings)
    room = or_(under_way == 0, and_(ENDPOINTS.c.failures == 0, under_way < rules.per_endpoint))
    awake = or_(ENDPOINTS.c.paused_until.is_(None), ENDPOINTS.c.paused_until <= tx.now)
    query = select(ENDPOINTS.c.id, ENDPOINTS.c.failures, SILENT.label("silent")).where(
        ENDPOINTS.c.active, awake, deliveries.where(WORK.due(tx.now)).exists(), room
    )
    patience = case((SILENT, ENDPOINTS.c.failures), else_=0)
    since = func.coalesce(ENDPOINTS.c.tried_at, ENDPOINTS.c.created_at)
    endpoints = tx.execute(query.order_by(ENDPOINTS.c.failures > 0, patience, since, ENDPOINTS.c.id)).all()
    working = tx.execute(select(DELIVERIES.c.endpoint_id).where(WORK.working)).scalars()
    called = Counter(_owner(each) for each in working if _is_callback(each))
    if called.total() >= max(1, rules.width - 1):
        endpoints = [row for row in endpoints if not _is_callback(row.id)]
    endpoints = sorted(endpoints, key=lambda row: called[_owner(row.id)])
    busy = ENDPOINTS.c.id.in_(select(DELIVERIES.c.endpoint_id).where(WORK.working))
    if any(row.silent for row in endpoints) and tx.execute(select(ENDPOINTS.c.id).where(SILENT, busy).limit(1)).first():
        return [row for row in endpoints if not row.silent]
    return list(endpoints)


def _is_callback(endpoint_id: str) -> bool:
    return endpoint_id.startswith("cb_")


def _owner(endpoint_id: str) -> str:
    return endpoint_id[:OWNER_CHARS]


def send(context: Context, owner: Owner) -> Settled:
    """Send the next delivery of the endpoint whose turn it is, and store the outcome. Sends none if no endpoint can
    take one.

    Never raises for an endpoint's error.
    """
    with context.db.read() as session:
        turns = [row.id for row in ready(session)]
    for endpoint_id in turns:
        if unit := claim(context, endpoint_id, owner):
            return _settle(context, unit, *_try(context, unit))
    return Settled()


def claim(context: Context, endpoint_id: str, owner: Owner) -> Unit | None:
    """Claim the oldest due delivery to an endpoint; None if the endpoint cannot take one now."""

    def act(tx: Tx) -> Unit | None:
        endpoint = lock(tx, endpoint_id)
        # Check again under the lock: another worker may have claimed first.
        if endpoint is None or endpoint_id not in {row.id for row in ready(tx)}:
            return None
        for row in work.claim(tx, WORK, endpoint, owner):
            tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(tried_at=tx.now))
            event = None if row.seq is None else outbox.one(tx, row.seq)
            former = endpoint.former_until is not None and endpoint.former_until > tx.now
            secrets = (endpoint.secret, endpoint.former_secret) if former else (endpoint.secret,)
            callback = Callback.parse(endpoint.callback) if endpoint.callback else None
            return view_of(Unit, row, url=endpoint.url, secrets=secrets, event=event, callback=callback)
        return None

    return context.db.run(act)


def _try(context: Context, unit: Unit) -> tuple[Answer | None, UnitError | None, int]:
    """Send a delivery; return (the answer or None, the error or None, milliseconds)."""
    started = time.monotonic()
    answer: Answer | None = None
    error: UnitError | None = None
    try:
        body = unit.body()
        if unit.callback:
            headers = message.plain_headers(unit.message_id, unit.callback.headers)
        else:
            headers = message.headers(unit.secrets, unit.message_id, context.db.now(), body)
        answer = post(unit.url, body, headers, webhooks_of(context.settings))
        error = answer.error
    except UnitError as failure:
        error = failure
    return answer, error, int((time.monotonic() - started) * 1000)


def _settle(context: Context, unit: Unit, answer: Answer | None, error: UnitError | None, latency_ms: int) -> Settled:
    status = answer.status if answer else None

    def act(tx: Tx) -> Settled:
        endpoint = lock(tx, unit.endpoint_id)
        if endpoint is None:
            return Settled()  # deleted with its deliveries
        values = {"response_status": status, **({} if error else {"finished_at": tx.now})}
        changes = work.settle(tx, WORK, endpoint, Outcome(unit, error, values=values))
        if not changes:
            return Settled()
        tx.execute(
            insert(ATTEMPTS).values(
                delivery_id=unit.id,
                response_status=status,
                preview=storable(answer.preview) if answer else "",
                error=storable(message_of(error))[:MAX_ERROR] if error else None,
                latency_ms=latency_ms,
                created_at=tx.now,
            )
        )
        _note(tx, endpoint, error)
        if endpoint.callback:
            _end(tx, endpoint)
        tx.wake_in("webhooks", changes.retry_in_s)
        tx.wake_in("webhooks", next_due_s(tx))
        return _settled(changes)

    settled = context.db.run(act)
    log.info(
        "webhook.sent" if error is None else "webhook.not_taken",
        endpoint=unit.endpoint_id,
        delivery=unit.id,
        type=unit.type,
        status=status,
        took_ms=latency_ms,
    )
    return settled


def _settled(changes: Changes) -> Settled:
    status = DeliveryStatus.DELIVERED if changes.done else DeliveryStatus.PENDING
    return Settled(1, retry_in_s=changes.retry_in_s, status=DeliveryStatus.FAILED if changes.failed else status)


def _note(tx: Tx, endpoint: Any, error: UnitError | None) -> None:
    """Record on the endpoint how a delivery ended: reset its failures after a success; else pause it, or disable it if
    it answered 410 or has failed for too long."""
    if error is not None and error.code == "expired":
        return  # not the endpoint's fault
    rules = webhooks_of(tx.settings)
    values: dict[str, Any] = {"failures": 0, "failing_since": None, "paused_until": None}
    if error is not None:
        failures, since = endpoint.failures + 1, endpoint.failing_since or tx.now
        pause_s = endurance.pause_s(failures, rules.longest_pause_s, error.retry_after_s)
        values = {"failures": failures, "failing_since": since, "paused_until": tx.now + timedelta(seconds=pause_s)}
        why = endurance.GONE if error.code == "http_410" else ""
        if endurance.has_failed_for_good(since, tx.now, rules.disable_after_days):
            why = f"it has failed since {since:%Y-%m-%d %H:%M} UTC"
        if why and endpoint.active:
            values |= {"active": False, "disabled_because": why}
            log.warning("webhook.disabled", endpoint=endpoint.id, because=why)
    tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint.id).values(**values, updated_at=tx.now))


def _end(tx: Tx, endpoint: Any) -> None:
    """Disable a callback whose task has ended and whose messages are delivered, or failed: retention deletes it."""
    is_open = (DELIVERIES.c.endpoint_id == endpoint.id, DELIVERIES.c.status.not_in(ENDED))
    if Callback.parse(endpoint.callback).has_ended and not tx.execute(select(DELIVERIES.c.id).where(*is_open)).first():
        ended = {"active": False, "disabled_because": "its task has ended"}
        tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint.id).values(**ended))


def next_due_s(tx: ReadTx) -> float | None:
    """Return the seconds until the retry of a delivery or the end of an endpoint's pause; None without one. Ignores
    times that are past."""
    waits = [work.next_due(tx, WORK)]
    open_ = select(DELIVERIES.c.id).where(DELIVERIES.c.endpoint_id == ENDPOINTS.c.id, WORK.claimable).exists()
    first = tx.execute(
        select(func.min(ENDPOINTS.c.paused_until)).where(ENDPOINTS.c.active, ENDPOINTS.c.paused_until > tx.now, open_)
    ).scalar()
    waits += [(first - tx.now).total_seconds()] if first else []
    return min((wait for wait in waits if wait is not None), default=None)
