"""The ledger of frames that were not accepted: what an audit finds of them."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from pipeline.flows.screenshots.models import REJECTIONS
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention, Rule, rows

if TYPE_CHECKING:
    from pipeline.flows.screenshots.rules.duplicates import Judgement

MAX_DETAIL = 300


def note(
    session: Session,
    source: str,
    ts: datetime,
    reason: str,
    now: datetime,
    *,
    sha256: str = "",
    phash: str = "",
    detail: str = "",
    judged: "Judgement | None" = None,
) -> None:
    """Note that a frame was not accepted. The same capture, rejected again for the same reason, is one row."""
    same = select(REJECTIONS.c.id).where(
        REJECTIONS.c.source_key == source,
        REJECTIONS.c.ts == ts,
        REJECTIONS.c.sha256 == sha256,
        REJECTIONS.c.reason == reason,
    )
    if session.execute(same.limit(1)).first() is not None:
        return
    row: dict[str, Any] = {
        "source_key": source,
        "ts": ts,
        "reason": reason,
        "detail": detail[:MAX_DETAIL],
        "sha256": sha256,
        "phash": phash,
        "created_at": now,
    }
    if judged is not None:
        row |= {"threshold": judged.threshold, "distance": judged.distance, "nearest_id": judged.nearest}
    session.execute(insert(REJECTIONS).values(**row))


def retained(context: Context) -> Retention:
    """Lines older than `ledger_days` go."""
    rule = Rule(days=context.settings.screenshots.ledger_days)
    return rows("rejections", rule, REJECTIONS.c.id, REJECTIONS.c.created_at)
