from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import select, update

from pipeline.engine.errors import UserError
from pipeline.nodes import tokens
from pipeline.storage import api_keys
from pipeline.storage.api_keys import API_KEYS, PREFIX, KeyView, Scope
from pipeline.storage.context import Context

pytestmark = pytest.mark.both_databases


def test_two_usable_keys_or_tokens_have_two_names(context: Context) -> None:
    def key() -> str:
        return api_keys.create(context, "laptop", Scope.READ)[1].id

    def token() -> str:
        return tokens.create(context, "laptop", tokens.TokenKind.NODE)[1].id

    makers = (key, api_keys.revoke), (token, tokens.revoke)
    for make, revoke in makers:
        first = make()
        with pytest.raises(UserError, match="called laptop already"):
            make()
        revoke(context, first)
        assert make() != first, "a name is free once its key is revoked"


def test_one_of_several_simultaneous_keys_gets_the_same_name(context: Context) -> None:
    together = Barrier(8)

    def make(_: int) -> str:
        together.wait(60)
        with suppress(UserError):
            return api_keys.create(context, "laptop", Scope.READ)[1].id
        return ""

    with ThreadPoolExecutor(8) as pool:
        created = [key_id for key_id in pool.map(make, range(8)) if key_id]
    assert len(created) == 1


def test_only_the_secret_s_hash_is_stored(context: Context) -> None:
    secret, key = api_keys.create(context, "mine", Scope.WRITE)
    assert secret.startswith(PREFIX)
    with context.db.read() as session:
        assert secret not in str(session.execute(select(API_KEYS)).one())
    authenticated = api_keys.authenticate(context, secret)
    assert authenticated is not None
    assert (authenticated.id, authenticated.scope) == (key.id, Scope.WRITE)
    for wrong in ("", secret[:-1], f"{secret} ", secret.upper(), "\x00", "\ud800"):
        assert api_keys.authenticate(context, wrong) is None


def test_a_key_ends_when_it_expires_and_when_it_is_revoked(context: Context) -> None:
    short, key = api_keys.create(context, "short", Scope.READ, timedelta(days=1))
    assert api_keys.any_usable(context)
    with context.db.transaction() as session:
        session.execute(update(API_KEYS).values(expires_at=context.db.now()))
    assert api_keys.authenticate(context, short) is None
    assert not api_keys.any_usable(context)
    secret, other = api_keys.create(context, "short", Scope.READ)
    assert [listed.id for listed in api_keys.list_keys(context)] == [key.id, other.id]
    with pytest.raises(UserError, match="several"):
        api_keys.revoke(context, "short")
    ended = api_keys.revoke(context, other.id)
    assert ended.revoked_at is not None
    assert api_keys.authenticate(context, secret) is None
    assert api_keys.revoke(context, other.id) == ended, "the time of the first revocation is kept"
    with pytest.raises(UserError, match="no key"):
        api_keys.revoke(context, "nobody")


def test_keys_created_simultaneously_are_all_stored(context: Context) -> None:
    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(lambda number: api_keys.create(context, f"key {number}", Scope.READ), range(8)))
    assert len({secret for secret, _ in created}) == 8
    assert all(api_keys.authenticate(context, secret) for secret, _ in created)


def test_the_time_of_last_use_is_not_written_at_every_use(context: Context) -> None:
    secret, _ = api_keys.create(context, "busy", Scope.READ)

    def last_use() -> KeyView:
        api_keys.authenticate(context, secret)
        return api_keys.list_keys(context)[0]

    first = last_use()
    assert first.last_used_at is not None
    assert last_use() == first
    with context.db.transaction() as session:
        session.execute(update(API_KEYS).values(last_used_at=first.last_used_at - timedelta(minutes=2)))
    assert last_use() != first
