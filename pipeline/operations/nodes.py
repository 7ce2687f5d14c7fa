"""Operations on nodes, their tokens and jobs, and the gateway's dead letters. Administrators see tokens and letters."""

from dataclasses import dataclass

from pipeline.engine.wire import VIEW
from pipeline.nodes import service, tokens
from pipeline.nodes.tokens import TokenKind, TokenView
from pipeline.operations.operation import acts, reads
from pipeline.storage import credentials
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context


@dataclass(frozen=True)
class CreatedToken:
    """A new token with its secret. No other answer has the secret."""

    __pydantic_config__ = VIEW
    token: TokenView
    secret: str
    """`pstn_…`: the node or session sends it as a bearer token."""


def _create(
    context: Context,
    name: str,
    kind: TokenKind = TokenKind.NODE,
    node_id: str = "",
    expires_days: float | None = None,
) -> CreatedToken:
    """Create a token that is valid for `expires_days` days; None: until it is revoked. `node_id`: only this node may
    use it."""
    secret, token = tokens.create(context, name, kind, credentials.lasts(expires_days), node_id)
    return CreatedToken(token, secret)


status, nodes, node = reads(service.status), reads(service.nodes), reads(service.node)
drain, revoke = acts(service.drain, Scope.ADMIN), acts(service.revoke, Scope.ADMIN)
free = acts(service.free, Scope.ADMIN)
list_tokens, create_token = reads(tokens.list_tokens, Scope.ADMIN), acts(_create, Scope.ADMIN)
revoke_token = acts(service.revoke_token, Scope.ADMIN)
jobs, job, cancel_job = reads(service.jobs), reads(service.job), acts(service.cancel, Scope.ADMIN)
dlq = reads(service.dlq, Scope.ADMIN)
replay, drop = acts(service.replay, Scope.ADMIN), acts(service.drop, Scope.ADMIN)
