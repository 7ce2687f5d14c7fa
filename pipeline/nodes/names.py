"""Names of nodes: the database records the token that first registered a node by a name as the name's owner.

A usable token that is restricted to one node (`--node`) takes that node's name from any other token. A revoked or
expired token loses its names to the next token that registers them.
"""

from datetime import datetime

import structlog
from sqlalchemy import ForeignKey, String, delete, func, select, update
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.errors import UserError
from pipeline.engine.tables import Base, UtcDateTime, insert_if_absent, table_of
from pipeline.engine.transaction import Tx
from pipeline.nodes import tokens
from pipeline.nodes.tokens import TokenView
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


class NodeName(Base):
    """The token that owns the name `node_id`."""

    __tablename__ = "node_names"

    node_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[str] = mapped_column(String(16), ForeignKey("node_tokens.id", ondelete="CASCADE"), index=True)
    since: Mapped[datetime] = mapped_column(UtcDateTime)


NODE_NAMES = table_of(NodeName)


def take(context: Context, node_id: str, token: TokenView, most: int) -> None:
    """Make the token the owner of the node's name; harmless if it is already. `most`: how many names one token may own.

    Raises `UserError` if the token is revoked or expired, if another usable token is restricted to the name and this
    one is not, if another usable token owns the name (a token restricted to it takes it from one that is not), or if
    the token would own too many names.
    """
    now = context.db.now()
    usable = [known for known in tokens.list_tokens(context) if known.usable(now)]
    entitled = {known.id for known in usable if known.node_id == node_id} or {known.id for known in usable}

    def work(tx: Tx) -> None:
        columns, this = NODE_NAMES.c, NODE_NAMES.c.node_id == node_id
        is_new = insert_if_absent(tx, NODE_NAMES, {"node_id": node_id, "token_id": token.id, "since": now})
        owner = tx.execute(select(columns.token_id).where(this).with_for_update()).scalar_one()
        if token.id not in entitled or (owner != token.id and owner in entitled):
            log.warning("node.name_refused", node=node_id, token=token.id, owner=owner)
            raise UserError("the name of this node belongs to another token", code="name_taken")
        if is_new or owner != token.id:
            tx.execute(update(NODE_NAMES).where(this).values(token_id=token.id, since=now))
            names = tx.execute(select(func.count()).where(columns.token_id == token.id)).scalar_one()
            if names > most:
                raise UserError(f"this token has {most} names of nodes already", code="too_many_names")

    with context.db.read() as session:
        has_it = session.scalar(select(NODE_NAMES.c.token_id).where(NODE_NAMES.c.node_id == node_id)) == token.id
    if not has_it or token.id not in entitled:  # a node that reconnects with its own token writes nothing
        context.db.run(work)


def all_names(context: Context) -> dict[str, str]:
    """Map each node's name to the id of the token that owns it, which may be revoked or expired."""
    with context.db.read() as session:
        return {row.node_id: row.token_id for row in session.execute(select(NODE_NAMES))}


def free(context: Context, node_id: str) -> None:
    """Forget the owner of a node's name: the next token that registers a node by it owns it. Harmless if no token owns
    it."""
    context.db.run(lambda tx: tx.execute(delete(NODE_NAMES).where(NODE_NAMES.c.node_id == node_id)))
