"""A caller's account: the check before paid work, and the statement."""

from pipeline.engine import accounts
from pipeline.flows import flows
from pipeline.storage import statements
from pipeline.storage.context import Context
from pipeline.storage.statements import Statement


def check(context: Context, owner: str) -> None:
    """Release the caller's reservations of work that has ended, then raise `OverCap` if it has spent its cap today."""
    _release(context, owner)
    with context.db.read() as session:
        accounts.check(session, owner, accounts.cap(session))


def statement(context: Context, owner: str, *, limit: int = 50, before: int | None = None) -> Statement:
    """Release the caller's reservations of work that has ended, then return today's balance, open reservations, and the
    newest charges of any day. `before`: only charges with a lower id."""
    _release(context, owner)
    return statements.statement(context, owner, limit, before)


def _release(context: Context, owner: str) -> None:
    for flow in flows():
        flow.release_money(context, owner)
