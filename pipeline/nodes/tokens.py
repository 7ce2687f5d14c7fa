"""Tokens of nodes and sessions: who may connect to the gateway, as what."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.errors import UserError
from pipeline.engine.tables import Base, table_of
from pipeline.engine.wire import VIEW
from pipeline.storage.context import Context
from pipeline.storage.credentials import CredentialColumns, Credentials, CredentialView

PREFIX = "pstn_"


class TokenKind(StrEnum):
    """What may connect with a token. A node's token gets no work done, and a session's offers none."""

    NODE = "node"
    SESSION = "session"


class NodeToken(CredentialColumns, Base):
    """One token."""

    __tablename__ = "node_tokens"

    kind: Mapped[str] = mapped_column(String(10))
    node_id: Mapped[str] = mapped_column(String(64), default="")
    """The only node that may register with it; empty: any."""


NODE_TOKENS = table_of(NodeToken)


@dataclass(frozen=True, kw_only=True)
class TokenView(CredentialView):
    """A token, without its secret."""

    __pydantic_config__ = VIEW
    kind: TokenKind
    node_id: str
    """The only node that may register with it; empty: any."""


_TOKENS = Credentials(
    NODE_TOKENS, TokenView, PREFIX, noun="token", listing="penstock nodes tokens list", names_are_unique=True
)
list_tokens, any_usable = _TOKENS.all, _TOKENS.any_usable


def create(
    context: Context, name: str, kind: TokenKind, lasts: timedelta | None = None, node_id: str = ""
) -> tuple[str, TokenView]:
    """(the secret, the token). The secret cannot be had again. `node_id`: the only node that may register with it.

    Raises `UserError` for a session's token with a node.
    """
    if node_id and kind is not TokenKind.NODE:
        raise UserError("only a token of the kind node can be for one node alone", code="usage")
    return _TOKENS.create(context, name, lasts, kind=kind, node_id=node_id)


def authenticate(context: Context, secret: str, kind: TokenKind | None = None) -> TokenView | None:
    """The usable token of this kind, or of either, with this secret. Asked anew each time."""
    found = _TOKENS.authenticate(context, secret)
    return found if found is not None and kind in (None, found.kind) else None


def still_usable(context: Context, ids: Collection[str]) -> set[str]:
    """Which tokens that were good are still so; while the database is away, nobody says otherwise of any."""
    return _TOKENS.still_usable(context, ids)


def revoke(context: Context, name_or_id: str) -> TokenView:
    """End a token now. Harmless if it was revoked before. Raises `UserError` for none or several of that name.

    Instances of the gateway close its connections within seconds, or at once when they are told: see `service`.
    """
    return _TOKENS.revoke(context, name_or_id)
