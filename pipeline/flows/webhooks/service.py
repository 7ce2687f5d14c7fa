"""The flow's commands: create, change, test and delete endpoints, and replay deliveries."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from sqlalchemy import delete, func, insert, select, update

from pipeline.engine import announced, outbox
from pipeline.engine.errors import UserError
from pipeline.engine.tables import insert_if_absent, portions
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.engine.wire import VIEW
from pipeline.flows.webhooks.models import DELIVERIES, ENDPOINTS, MAX_DESCRIPTION, MAX_URL, OWNER_CHARS
from pipeline.flows.webhooks.plan import SEND
from pipeline.flows.webhooks.queries import DeliveryView, EndpointView, UnknownDelivery, UnknownEndpoint
from pipeline.flows.webhooks.rules import message
from pipeline.flows.webhooks.rules.callback import Callback
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.states import DELIVERY, DeliveryEvent, DeliveryStatus
from pipeline.flows.webhooks.work import fanout
from pipeline.flows.webhooks.work.fanout import lock
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention, Rule, rows

MAX_TYPES = 50
FORMER_SECRET_DAYS = 1
"""Days for which the former secret also signs."""


@dataclass(frozen=True)
class Created:
    """An endpoint with its new secret, which no other answer contains."""

    __pydantic_config__ = VIEW
    endpoint: EndpointView
    secret: str
    """`whsec_…`, with which receivers verify messages."""


def create(context: Context, url: str, types: Sequence[str] = (), description: str = "") -> Created:
    """Add an endpoint, which gets only events from now on. `types`: such as `document.completed` or `document.*`; none:
    all events.

    Raises `UserError` for invalid values, or beyond `max_endpoints`.
    """
    check_url(url)
    _check_types(types)
    _check_text("description", description, MAX_DESCRIPTION)
    endpoint_id, secret = f"ep_{uuid4().hex[:16]}", message.new_secret()
    most = webhooks_of(context.settings).max_endpoints

    def act(tx: Tx) -> EndpointView:
        if _count(tx, ENDPOINTS.c.callback.is_(None)) >= most:
            raise UserError(f"there are {most} webhook endpoints already (webhooks.max_endpoints)", code="too_many")
        row = {
            "id": endpoint_id,
            "url": url,
            "secret": secret,
            "types": json.dumps(list(types)),
            "active": True,
            "description": description,
            "cursor": outbox.last_seq(tx),
            "missed": 0,
            "failures": 0,
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        insert_if_absent(tx, ENDPOINTS, row)
        return view_of(EndpointView, lock(tx, endpoint_id))

    return Created(context.db.run(act), secret)


def create_callback(context: Context, url: str, callback: Callback, caller: str) -> str:
    """Add an endpoint for the messages about a task, and return its id: that of the existing one if the same request
    came before and still waits. Call `report` then: documents may rest already.

    Raises `UserError` for an invalid address, with `max_endpoints` open callbacks, or half as many of this caller.
    """
    check_url(url)
    identity = json.dumps([url, callback.task_id, callback.headers], sort_keys=True)
    most = webhooks_of(context.settings).max_endpoints

    def act(tx: Tx) -> str:
        opened = (ENDPOINTS.c.description == hashlib.sha256(identity.encode()).hexdigest(), ENDPOINTS.c.active)
        if existing := tx.execute(select(ENDPOINTS.c.id).where(*opened)).scalar():
            return str(existing)
        under_way = (ENDPOINTS.c.callback.is_not(None), ENDPOINTS.c.active)
        if (
            _count(tx, *under_way) >= most
            or _count(tx, *under_way, ENDPOINTS.c.id.startswith(endpoint_id[:OWNER_CHARS])) >= (most + 1) // 2
        ):
            message = f"{most} callbacks, or half as many of yours, are under way already (webhooks.max_endpoints)"
            raise UserError(message, code="too_many_requests")
        row = {
            "id": endpoint_id,
            "url": url,
            "secret": "",
            "types": "[]",
            "active": True,
            "description": hashlib.sha256(identity.encode()).hexdigest(),
            "callback": callback.text,
            "cursor": outbox.last_seq(tx),
            "missed": 0,
            "failures": 0,
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        if insert_if_absent(tx, ENDPOINTS, row):
            fanout.send(tx, endpoint_id, [callback.begun()])
        tx.launch("webhooks", SEND)
        return endpoint_id

    endpoint_id = f"cb_{hashlib.sha256(caller.encode()).hexdigest()[:6]}{uuid4().hex[:10]}"
    return context.db.run(act)


def report(context: Context, endpoint_id: str, states: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Tell a callback of documents, as (id, state's word, facts): it sends messages about those at rest, once each."""

    def act(tx: Tx) -> None:
        row = _lock(tx, endpoint_id)
        for document_id, status, facts in states:
            row = fanout.report(tx, row, document_id, status, facts)
        tx.launch("webhooks", SEND)

    context.db.run(act)


def change(
    context: Context,
    endpoint_id: str,
    *,
    url: str | None = None,
    types: Sequence[str] | None = None,
    active: bool | None = None,
    description: str | None = None,
) -> EndpointView:
    """Change an endpoint; None keeps a value, and empty `types` mean all events. Raises `UserError` for
    invalid values, `UnknownEndpoint`.

    A reactivated endpoint gets events from then on; `replay_range` sends earlier events.
    """
    if url is not None:
        check_url(url)
    _check_types(types or ())
    _check_text("description", description or "", MAX_DESCRIPTION)

    def act(tx: Tx) -> EndpointView:
        row, now = _lock(tx, endpoint_id), tx.now
        requested = {
            "url": url,
            "types": None if types is None else json.dumps(list(types)),
            "description": description,
        }
        values: dict[str, Any] = {name: value for name, value in requested.items() if value is not None}
        if active is not None and active != row.active:
            well = {"failures": 0, "failing_since": None, "paused_until": None, "cursor": outbox.last_seq(tx)}
            values |= {"active": active, "disabled_because": None if active else "by hand", **(well if active else {})}
        tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(**values, updated_at=now))
        tx.launch("webhooks", SEND)
        return view_of(EndpointView, _lock(tx, endpoint_id))

    return context.db.run(act)


def exchange_secret(context: Context, endpoint_id: str) -> Created:
    """Give an endpoint a new secret. The former secret also signs for a day; earlier secrets stop at once."""
    secret = message.new_secret()

    def act(tx: Tx) -> EndpointView:
        row, now = _lock(tx, endpoint_id), tx.now
        if row.secret != secret:  # otherwise an earlier commit, whose answer was lost, did it
            until = now + timedelta(days=FORMER_SECRET_DAYS)
            values = {"secret": secret, "former_secret": row.secret, "former_until": until, "updated_at": now}
            tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(**values))
        return view_of(EndpointView, _lock(tx, endpoint_id))

    return Created(context.db.run(act), secret)


def remove(context: Context, endpoint_id: str) -> None:
    """Delete an endpoint with its deliveries; a request that is being sent goes on, but its outcome is lost. Raises
    `UnknownEndpoint`."""

    def act(tx: Tx) -> None:
        _lock(tx, endpoint_id)
        tx.execute(delete(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id))

    context.db.run(act)


def test(context: Context, endpoint_id: str) -> DeliveryView:
    """Add a test delivery for the endpoint, independently of its types, and end the endpoint's pause.

    Workers send it. Raises `UserError` for a disabled endpoint, `UnknownEndpoint`.
    """

    def act(tx: Tx) -> DeliveryView:
        row, now = _lock(tx, endpoint_id), tx.now
        if not row.active:
            raise UserError(f"endpoint {endpoint_id} is disabled: {row.disabled_because}", code="illegal_state")
        values = {"endpoint_id": endpoint_id, "type": message.TEST, "created_at": now, "updated_at": now}
        delivery_id = tx.execute(insert(DELIVERIES).values(**values).returning(DELIVERIES.c.id)).scalar_one()
        tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(paused_until=None))
        tx.launch("webhooks", SEND)
        return view_of(DeliveryView, tx.execute(select(DELIVERIES).where(DELIVERIES.c.id == delivery_id)).one())

    return context.db.run(act)


def replay(context: Context, delivery_id: int) -> DeliveryView:
    """Make a delivery with any outcome pending again, as if untried; a waiting one becomes due at once. That of a
    disabled endpoint waits until someone enables it.

    Raises `UnknownDelivery`, or `IllegalTransition` while it is being sent.
    """

    def act(tx: Tx) -> DeliveryView:
        query = select(DELIVERIES).where(DELIVERIES.c.id == delivery_id)
        row = tx.execute(query).one_or_none()
        if row is None or lock(tx, row.endpoint_id) is None:
            raise UnknownDelivery(delivery_id)
        row = tx.execute(query).one()
        if not _reopen(tx, DELIVERIES.c.id == delivery_id):
            DELIVERY.target(DeliveryStatus(row.status), DeliveryEvent.REPLAY)
        return view_of(DeliveryView, tx.execute(query).one())

    return context.db.run(act)


def replay_range(context: Context, endpoint_id: str, since: datetime, until: datetime | None = None) -> int:
    """Make deliveries of all stored events from `since` to before `until` that an endpoint wants, delivered or not,
    except new ones that have no delivery yet and follow anyway; return their number. Workers send them.

    Waiting deliveries become due at once; those being sent stay as they are and do not count. Includes events from
    times when the endpoint was disabled. `until`: None: now. Raises `UserError` for a disabled endpoint,
    `UnknownEndpoint`.
    """
    with context.db.read() as session:
        row = session.execute(select(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id)).one_or_none()
        if row is None:
            raise UnknownEndpoint(endpoint_id)
        _check_active(row)
        patterns = json.loads(row.types)
        events = outbox.between(session, since, until or context.db.now())
        # Events beyond the cursor follow anyway.
        due = (event for event in events if event.seq <= row.cursor and announced.wants(patterns, event.type))
        wanted = [(event.seq, event.type) for event in due]
    return sum(
        context.db.run(partial(_replay, endpoint_id=endpoint_id, wanted=portion)) for portion in portions(wanted)
    )


def replay_failed(context: Context, endpoint_id: str | None = None) -> int:
    """Make every failed delivery pending again, to one endpoint or to all active ones; return their number. Workers
    send them.

    Raises `UserError` for a disabled `endpoint_id`, `UnknownEndpoint`.
    """
    with context.db.read() as session:
        which = ENDPOINTS.c.active if endpoint_id is None else ENDPOINTS.c.id == endpoint_id
        endpoints = session.execute(select(ENDPOINTS).where(which)).all()
    if endpoint_id is not None and not endpoints:
        raise UnknownEndpoint(endpoint_id)
    for row in endpoints:
        _check_active(row)

    def act(tx: Tx, endpoint: str) -> int:
        if lock(tx, endpoint) is None:
            return 0
        failed = (DELIVERIES.c.endpoint_id == endpoint, DELIVERIES.c.status == DeliveryStatus.FAILED)
        return _reopen(tx, *failed)

    return sum(context.db.run(partial(act, endpoint=row.id)) for row in endpoints)


def retained(context: Context) -> list[Retention]:
    """Return the rules of retention for ended deliveries with their attempts, and for callbacks of ended tasks."""
    rule = Rule(webhooks_of(context.settings).deliveries_days)
    ended = DELIVERIES.c.status.in_([DeliveryStatus.DELIVERED, DeliveryStatus.FAILED])
    callbacks = (ENDPOINTS.c.callback.is_not(None), ~ENDPOINTS.c.active)
    return [
        rows("deliveries", rule, DELIVERIES.c.id, DELIVERIES.c.created_at, ended),
        rows("ended callbacks", rule, ENDPOINTS.c.id, ENDPOINTS.c.created_at, *callbacks),
    ]


def known_types() -> list[str]:
    """Return every type of event that the imported flows announce; import all flows first."""
    return announced.every_type()


def check_url(url: str) -> None:
    """Raise `UserError` for a URL that is not http or https, is too long, or has blanks, a user name or a password.
    Looks up no address: each delivery checks whether it is public."""
    _check_text("url", url, MAX_URL)
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or any(char.isspace() for char in url):
        raise UserError("a webhook endpoint needs a URL such as https://example.com/hook", code="bad_url")
    if parts.username is not None or parts.password is not None:
        raise UserError("a webhook endpoint's URL must not contain a password: signatures replace it", code="bad_url")


def _count(tx: Tx, *which: Any) -> int:
    return int(tx.execute(select(func.count()).select_from(ENDPOINTS).where(*which)).scalar_one())


def _check_types(types: Sequence[str]) -> None:
    if len(types) > MAX_TYPES:
        raise UserError(f"an endpoint may name at most {MAX_TYPES} types of events", code="too_many")
    for name in types:
        _check_text("type", name, 80)
    if bad := announced.unknown(types, known_types() if types else ()):
        kinds = ", ".join(f"{kind}.*" for kind in sorted(announced.KINDS))
        raise UserError(
            f"unknown types of events: {', '.join(bad)}; known are {kinds}, see docs/how-to/webhooks.md",
            code="bad_type",
        )


def _check_text(name: str, text: str, most: int) -> None:
    if len(text) > most or not text.isprintable():
        raise UserError(f"{name}: at most {most} printable characters", code="bad_value")


def _check_active(row: Any) -> None:
    if not row.active:
        raise UserError(f"endpoint {row.id} is disabled: enable it first", code="illegal_state")


def _lock(tx: Tx, endpoint_id: str) -> Any:
    row = lock(tx, endpoint_id)
    if row is None:
        raise UnknownEndpoint(endpoint_id)
    return row


def _reopen(tx: Tx, *which: Any) -> int:
    tx.launch("webhooks", SEND)
    values = {"attempts": 0, "next_run_at": None, "error": None, "finished_at": None, "updated_at": tx.now}
    return DELIVERY.move(tx, DELIVERIES, DeliveryEvent.REPLAY, *which, **values)


def _replay(tx: Tx, endpoint_id: str, wanted: Sequence[tuple[int, str]]) -> int:
    if lock(tx, endpoint_id) is None:
        return 0
    named = (DELIVERIES.c.endpoint_id == endpoint_id, DELIVERIES.c.seq.in_([seq for seq, _ in wanted]))
    existing = set(tx.scalars(select(DELIVERIES.c.seq).where(*named)))
    new = [
        {"endpoint_id": endpoint_id, "seq": seq, "type": kind, "created_at": tx.now, "updated_at": tx.now}
        for seq, kind in wanted
        if seq not in existing
    ]
    reopened = _reopen(tx, *named)
    if new:
        tx.execute(insert(DELIVERIES), new)
    return reopened + len(new)
