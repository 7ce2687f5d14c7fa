"""A message's place while its task runs."""

from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from redis.exceptions import ConnectionError as RedisConnectionError

import tasks.flow
from pipeline.engine.breaker import Breaker, BreakerPolicy
from pipeline.engine.gate import Gate
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.launch import Place, Places, Wanted
from pipeline.engine.presence import Presence
from pipeline.storage.context import Context
from tasks.flow import at_work
from tasks.presence import holder_of, identity
from tests.support.waiting import wait_until

PLACE = Place("sim:a", "cpu")


@pytest.mark.parametrize("error", [RedisConnectionError, SoftTimeLimitExceeded])
def test_a_place_that_could_not_be_left_is_left_when_redis_is_back(
    context: Context, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(tasks.flow, "LEAVE_RETRY_S", 0.01)
    away, errors = iter([True, True, False]), [error, RedisConnectionError]
    leave = Places.leave

    def failing(self: Places, *args: Any) -> None:
        if next(away):
            raise errors.pop(0)
        leave(self, *args)

    monkeypatch.setattr(Places, "leave", failing)
    with pytest.raises(error), at_work(_task("m1"), PLACE):
        pass
    wanted = [Wanted(PLACE.scope, PLACE.queue)]
    wait_until(lambda: Places(context.redis).reserve(wanted) == [[0]], 60, "the place is free")


def test_a_place_whose_begin_had_no_answer_is_left_when_redis_is_back(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.flow, "LEAVE_RETRY_S", 0.01)
    begin = Places.begin
    holders = []

    def unanswered(self: Places, *args: Any) -> str:
        holders.append(begin(self, *args))
        raise RedisConnectionError

    monkeypatch.setattr(Places, "begin", unanswered)
    Presence(context.redis).renew(identity.process_id, 60)
    with pytest.raises(RedisConnectionError), at_work(_task("m1"), PLACE):
        pass
    assert holders == [""]
    wanted = [Wanted(PLACE.scope, PLACE.queue)]
    wait_until(lambda: Places(context.redis).reserve(wanted) == [[0]], 60, "the place is free")


@pytest.mark.parametrize("is_sibling", [True, False])
def test_a_surplus_message_gives_back_its_admission_unless_a_sibling_shares_it(
    context: Context, is_sibling: bool
) -> None:
    worker, _, nonce = identity.worker_id.rsplit(":", 2)
    other = f"{worker if is_sibling else 'elsewhere'}:1:{nonce}"
    Presence(context.redis).renew(other, 60)
    Places(context.redis).begin(PLACE, f"{other}/m1", 60)
    gate = Gate(context.redis, "vision.a", "a:vision", 60)
    gate.own.configure([], 1)
    gate.shared.configure([], None)
    assert gate.admit(holder_of("m1")).granted
    guarded = GuardedCall(
        gate,
        Breaker(context.redis, "a:vision", BreakerPolicy()),
        holder_of("m1"),
        quota_reset=lambda now: now,
        on_change=lambda _: None,
        cost_of=lambda *_: 0.0,
        on_cost=lambda _: None,
    )
    with at_work(_task("m1"), PLACE, guarded=guarded) as work:
        assert work is None
    guarded.leave()
    assert gate.inspect().in_flight == (1 if is_sibling else 0)


def _task(message: str) -> Any:
    request = SimpleNamespace(id=message)
    request.update = lambda **values: vars(request).update(values)
    return SimpleNamespace(request=request)
