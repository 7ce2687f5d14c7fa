"""What one may ask of webhooks."""

import json
from collections.abc import Sequence
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
from pipeline.flows.webhooks.models import DELIVERIES, ENDPOINTS, MAX_DESCRIPTION, MAX_URL
from pipeline.flows.webhooks.plan import SEND
from pipeline.flows.webhooks.queries import DeliveryView, EndpointView, UnknownDelivery, UnknownEndpoint
from pipeline.flows.webhooks.rules import message
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.states import DELIVERY, DeliveryEvent, DeliveryStatus
from pipeline.flows.webhooks.work.fanout import lock
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention, Rule, rows

MAX_TYPES = 50
FORMER_SECRET_DAYS = 1
"""The former secret signs beside the new one for this long."""


@dataclass(frozen=True)
class Created:
    """An endpoint with its new secret. No other answer has the secret."""

    __pydantic_config__ = VIEW
    endpoint: EndpointView
    secret: str
    """`whsec_…`: whoever receives verifies with it."""


def create(context: Context, url: str, types: Sequence[str] = (), description: str = "") -> Created:
    """Add an endpoint for later events: `types` such as `document.completed` or `document.*`; none: every one.

    Raises `UserError` for what cannot be an endpoint.
    """
    check_url(url)
    _check_types(types)
    _check_text("description", description, MAX_DESCRIPTION)
    endpoint_id, secret = f"ep_{uuid4().hex[:16]}", message.new_secret()
    most = webhooks_of(context.settings).max_endpoints

    def act(tx: Tx) -> EndpointView:
        if tx.execute(select(func.count()).select_from(ENDPOINTS)).scalar_one() >= most:
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


def change(
    context: Context,
    endpoint_id: str,
    *,
    url: str | None = None,
    types: Sequence[str] | None = None,
    active: bool | None = None,
    description: str | None = None,
) -> EndpointView:
    """Change an endpoint. One that is made active again gets events from then on: `replay_range` sends earlier ones."""
    if url is not None:
        check_url(url)
    _check_types(types or ())
    _check_text("description", description or "", MAX_DESCRIPTION)

    def act(tx: Tx) -> EndpointView:
        row, now = _lock(tx, endpoint_id), tx.now
        told = {"url": url, "types": None if types is None else json.dumps(list(types)), "description": description}
        values: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
        if active is not None and active != row.active:
            well = {"failures": 0, "failing_since": None, "paused_until": None, "cursor": outbox.last_seq(tx)}
            values |= {"active": active, "disabled_because": None if active else "by hand", **(well if active else {})}
        tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(**values, updated_at=now))
        tx.launch("webhooks", SEND)
        return view_of(EndpointView, _lock(tx, endpoint_id))

    return context.db.run(act)


def exchange_secret(context: Context, endpoint_id: str) -> Created:
    """Give an endpoint a new secret. For a day the former one signs as well; earlier ones stop at once."""
    secret = message.new_secret()

    def act(tx: Tx) -> EndpointView:
        row, now = _lock(tx, endpoint_id), tx.now
        if row.secret != secret:  # else an earlier try did it, and its commit had no answer
            until = now + timedelta(days=FORMER_SECRET_DAYS)
            values = {"secret": secret, "former_secret": row.secret, "former_until": until, "updated_at": now}
            tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(**values))
        return view_of(EndpointView, _lock(tx, endpoint_id))

    return Created(context.db.run(act), secret)


def remove(context: Context, endpoint_id: str) -> None:
    """Delete an endpoint with its deliveries. What is being sent to it finds no row left."""

    def act(tx: Tx) -> None:
        _lock(tx, endpoint_id)
        tx.execute(delete(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id))

    context.db.run(act)


def test(context: Context, endpoint_id: str) -> DeliveryView:
    """Send the endpoint a test, whatever types it wants."""
    made: list[int] = []

    def act(tx: Tx) -> DeliveryView:
        row, now = _lock(tx, endpoint_id), tx.now
        if not row.active:
            raise UserError(f"endpoint {endpoint_id} is disabled: {row.disabled_because}", code="illegal_state")
        values = {"endpoint_id": endpoint_id, "type": message.TEST, "created_at": now, "updated_at": now}
        made[:] = [tx.execute(insert(DELIVERIES).values(**values).returning(DELIVERIES.c.id)).scalar_one()]
        tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(paused_until=None))
        tx.launch("webhooks", SEND)
        return view_of(DeliveryView, tx.execute(select(DELIVERIES).where(DELIVERIES.c.id == made[0])).one())

    return context.db.run(act)


def replay(context: Context, delivery_id: int) -> DeliveryView:
    """Send one delivery again, however it ended; one that waits is sent at once."""

    def act(tx: Tx) -> DeliveryView:
        mine = select(DELIVERIES).where(DELIVERIES.c.id == delivery_id)
        row = tx.execute(mine).one_or_none()
        if row is None or lock(tx, row.endpoint_id) is None:
            raise UnknownDelivery(delivery_id)
        row = tx.execute(mine).one()
        if not _again(tx, DELIVERIES.c.id == delivery_id):
            DELIVERY.target(DeliveryStatus(row.status), DeliveryEvent.REPLAY)
        return view_of(DeliveryView, tx.execute(mine).one())

    return context.db.run(act)


def replay_range(context: Context, endpoint_id: str, since: datetime, until: datetime | None = None) -> int:
    """Send an endpoint all events of a time again that it wants and that are kept; how many.

    Those that wait are sent at once. Events that it never got, as while it was disabled, are sent as well.
    """
    with context.db.read() as session:
        row = session.execute(select(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id)).one_or_none()
        if row is None:
            raise UnknownEndpoint(endpoint_id)
        _check_active(row)
        patterns = json.loads(row.types)
        found = outbox.between(session, since, until or context.db.now())
        # Beyond the cursor: they come anyway.
        wanted = [(one.seq, one.type) for one in found if one.seq <= row.cursor and announced.wants(patterns, one.type)]
    return sum(context.db.run(partial(_replay, endpoint_id=endpoint_id, wanted=some)) for some in portions(wanted))


def replay_failed(context: Context, endpoint_id: str | None = None) -> int:
    """Send every delivery that failed for good again, to one endpoint or to all that are active; how many."""
    with context.db.read() as session:
        mine = ENDPOINTS.c.active if endpoint_id is None else ENDPOINTS.c.id == endpoint_id
        found = session.execute(select(ENDPOINTS).where(mine)).all()
    if endpoint_id is not None and not found:
        raise UnknownEndpoint(endpoint_id)
    for row in found:
        _check_active(row)

    def act(tx: Tx, endpoint: str) -> int:
        if lock(tx, endpoint) is None:
            return 0
        failed = (DELIVERIES.c.endpoint_id == endpoint, DELIVERIES.c.status == DeliveryStatus.FAILED)
        return _again(tx, *failed)

    return sum(context.db.run(partial(act, endpoint=row.id)) for row in found)


def retained(context: Context) -> list[Retention]:
    """Deliveries that have ended, with their attempts."""
    rule = Rule(webhooks_of(context.settings).deliveries_days)
    ended = DELIVERIES.c.status.in_([DeliveryStatus.DELIVERED, DeliveryStatus.FAILED])
    return [rows("deliveries", rule, DELIVERIES.c.id, DELIVERIES.c.created_at, ended)]


def known_types() -> list[str]:
    """Every type of event that an endpoint may want. The flows must have been imported."""
    return announced.every_type()


def check_url(url: str) -> None:
    """Raise `UserError` for what cannot be an endpoint's URL. Whether its address is public is seen when it is used."""
    _check_text("url", url, MAX_URL)
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or any(char.isspace() for char in url):
        raise UserError("a webhook endpoint needs a URL such as https://example.com/hook", code="bad_url")
    if parts.username is not None or parts.password is not None:
        raise UserError("a webhook endpoint's URL must not hold a password: its messages are signed", code="bad_url")


def _check_types(types: Sequence[str]) -> None:
    if len(types) > MAX_TYPES:
        raise UserError(f"an endpoint may name {MAX_TYPES} types of events at most", code="too_many")
    for one in types:
        _check_text("type", one, 80)
    if bad := announced.unknown(types, known_types() if types else ()):
        kinds = ", ".join(f"{kind}.*" for kind in sorted(announced.KINDS))
        raise UserError(
            f"there are no events of type {', '.join(bad)}; there are {kinds}, see docs/how-to/webhooks.md",
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


def _again(tx: Tx, *which: Any) -> int:
    tx.launch("webhooks", SEND)
    values = {"attempts": 0, "next_run_at": None, "error": None, "finished_at": None, "updated_at": tx.now}
    return DELIVERY.move(tx, DELIVERIES, DeliveryEvent.REPLAY, *which, **values)


def _replay(tx: Tx, endpoint_id: str, wanted: Sequence[tuple[int, str]]) -> int:
    if lock(tx, endpoint_id) is None:
        return 0
    mine = (DELIVERIES.c.endpoint_id == endpoint_id, DELIVERIES.c.seq.in_([seq for seq, _ in wanted]))
    there = set(tx.scalars(select(DELIVERIES.c.seq).where(*mine)))
    new = [
        {"endpoint_id": endpoint_id, "seq": seq, "type": kind, "created_at": tx.now, "updated_at": tx.now}
        for seq, kind in wanted
        if seq not in there
    ]
    again = _again(tx, *mine)
    if new:
        tx.execute(insert(DELIVERIES), new)
    return again + len(new)
