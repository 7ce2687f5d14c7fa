"""A message's place while it is worked on."""

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

import tasks.flow
from pipeline.engine.launch import Place, Places, Wanted
from pipeline.storage.context import Context
from tasks.flow import at_work
from tests.support.waiting import wait_until

PLACE = Place("sim:a", "cpu")


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def test_a_place_that_could_not_be_left_is_left_when_redis_is_back(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(tasks.flow, "LEAVE_AGAIN_S", 0.01)
    away = iter([True, True, False])
    leave = Places.leave

    def failing(self: Places, *args: Any) -> None:
        if next(away):
            raise RedisConnectionError
        leave(self, *args)

    monkeypatch.setattr(Places, "leave", failing)
    with pytest.raises(RedisConnectionError), at_work(SimpleNamespace(request=SimpleNamespace(id="m1")), PLACE):
        pass
    asked = [Wanted(PLACE.scope, PLACE.queue)]
    wait_until(lambda: Places(context.redis).reserve(asked) == [[0]], 20, "the place is free")
