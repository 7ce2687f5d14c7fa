"""Tokens with which nodes and sessions connect to the gateway."""

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
    """The kind of client that may connect with a token. Nodes cannot request jobs; sessions cannot do them."""

    NODE = "node"
    SESSION = "session"


class NodeToken(CredentialColumns, Base):
    """A token, with the hash of its secret."""

    __tablename__ = "node_tokens"

    kind: Mapped[str] = mapped_column(String(10))
    node_id: Mapped[str] = mapped_column(String(64), default="")
    """The only node that may register with the token. Empty: any node."""


NODE_TOKENS = table_of(NodeToken)


@dataclass(frozen=True, kw_only=True)
class TokenView(CredentialView):
    """A token, without its secret."""

    __pydantic_config__ = VIEW
    kind: TokenKind
    node_id: str
    """The only node that may register with the token. Empty: any node."""


_TOKENS = Credentials(
    NODE_TOKENS, TokenView, PREFIX, noun="token", listing="penstock nodes tokens list", names_are_unique=True
)
list_tokens, any_usable = _TOKENS.all, _TOKENS.any_usable


def create(
    context: Context, name: str, kind: TokenKind, lasts: timedelta | None = None, node_id: str = ""
) -> tuple[str, TokenView]:
    """Create a token. Returns (the secret, the token); the secret is not stored.

    `node_id`: the only node that may register with the token. Raises `UserError` for a session's token with a node, or
    if a usable token has the name.
    """
    if node_id and kind is not TokenKind.NODE:
        raise UserError("only a token of kind node can be restricted to one node", code="usage")
    return _TOKENS.create(context, name, lasts, kind=kind, node_id=node_id)


def authenticate(context: Context, secret: str, kind: TokenKind | None = None) -> TokenView | None:
    """Return the token with this secret if it is neither revoked nor expired, and of this kind; `kind` None: of any.
    Reads the database."""
    token = _TOKENS.authenticate(context, secret)
    return token if token is not None and kind in (None, token.kind) else None


def still_usable(context: Context, ids: Collection[str]) -> set[str]:
    """Return those of these tokens that are neither revoked nor expired; all of them while the database is away."""
    return _TOKENS.still_usable(context, ids)


def revoke(context: Context, name_or_id: str) -> TokenView:
    """Revoke the token with this name, id or beginning of an id. Harmless if it is revoked already. Raises `UserError`
    for no match or several.

    Gateway instances notice within seconds and close its connections. `service.revoke_token` notifies them at once.
    """
    return _TOKENS.revoke(context, name_or_id)
