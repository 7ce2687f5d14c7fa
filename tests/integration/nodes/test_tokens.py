from datetime import timedelta

import pytest
from sqlalchemy import select, update

from pipeline.engine.errors import UserError
from pipeline.nodes import tokens
from pipeline.nodes.tokens import NODE_TOKENS, PREFIX, TokenKind
from pipeline.storage import api_keys
from pipeline.storage.context import Context

pytestmark = pytest.mark.both_databases


def test_a_token_is_valid_only_for_its_kind(context: Context) -> None:
    secret, token = tokens.create(context, "desk", TokenKind.NODE)
    assert secret.startswith(PREFIX)
    with context.db.read() as session:
        assert secret not in str(session.execute(select(NODE_TOKENS)).one())
    authenticated = tokens.authenticate(context, secret, TokenKind.NODE)
    assert authenticated is not None
    assert (authenticated.id, authenticated.kind, authenticated.node_id) == (token.id, TokenKind.NODE, "")
    assert tokens.authenticate(context, secret) is not None
    assert tokens.authenticate(context, secret, TokenKind.SESSION) is None
    for wrong in ("", secret[:-1], f"{secret} ", "\x00", "\ud800"):
        assert tokens.authenticate(context, wrong, TokenKind.NODE) is None


def test_api_keys_and_tokens_are_not_interchangeable(context: Context) -> None:
    key, _ = api_keys.create(context, "caller", api_keys.Scope.ADMIN)
    token, _ = tokens.create(context, "caller", TokenKind.SESSION)
    assert tokens.authenticate(context, key) is None
    assert api_keys.authenticate(context, token) is None


def test_a_token_may_be_limited_to_one_node(context: Context) -> None:
    secret, _ = tokens.create(context, "rack 3", TokenKind.NODE, node_id="rack-3")
    authenticated = tokens.authenticate(context, secret, TokenKind.NODE)
    assert authenticated is not None
    assert authenticated.node_id == "rack-3"


def test_connections_lose_tokens_that_expire_or_are_revoked(context: Context) -> None:
    assert not tokens.any_usable(context)
    ids = [
        tokens.create(context, name, TokenKind.NODE, timedelta(days=1))[1].id for name in ("good", "expired", "revoked")
    ]
    assert tokens.still_usable(context, ids) == set(ids)
    with context.db.transaction() as session:
        session.execute(update(NODE_TOKENS).where(NODE_TOKENS.c.id == ids[1]).values(expires_at=context.db.now()))
    assert tokens.revoke(context, "revoked").revoked_at is not None
    assert tokens.still_usable(context, [*ids, "nobody's"]) == {ids[0]}
    assert tokens.still_usable(context, []) == set()
    assert [token.name for token in tokens.list_tokens(context)] == ["good", "expired", "revoked"]
    with pytest.raises(UserError, match="no token nobody; see `penstock nodes tokens list`"):
        tokens.revoke(context, "nobody")


def test_a_session_token_cannot_be_limited_to_a_node(context: Context) -> None:
    with pytest.raises(UserError, match="kind node"):
        tokens.create(context, "pipeline", TokenKind.SESSION, node_id="desk")
