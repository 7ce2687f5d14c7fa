import asyncio

import pytest

from pipeline.nodes.state import requests as module
from pipeline.nodes.state.requests import Binding, Requests
from pipeline.nodes.state.store import Store
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def requests(store: Store) -> Requests:
    return Requests(store)


async def test_a_request_to_several_instances_is_one_job(requests: Requests) -> None:
    bound = await asyncio.gather(*(requests.bind("t:r", f"j{number}", f"i{number % 3}/1") for number in range(50)))
    (winner,) = [number for number, each in enumerate(bound) if each.bound_here]
    assert {each.job_id for each in bound} == {f"j{winner}"}
    assert all(each.creating for each in bound if not each.bound_here)


async def test_a_bound_request_keeps_its_job(requests: Requests) -> None:
    assert await requests.bind("t:r", "j", "a/1") == Binding("j", bound_here=True, creating=False)
    assert await requests.bind("t:r", "j", "a/1") == Binding("j", bound_here=True, creating=False)
    assert await requests.bind("t:r", "k", "b/1") == Binding("j", bound_here=False, creating=True)
    await requests.unlock("t:r", "b/1")
    assert (await requests.bind("t:r", "k", "b/1")).creating
    await requests.unlock("t:r", "a/1")
    assert await requests.bind("t:r", "k", "b/1") == Binding("j", bound_here=False, creating=False)
    assert (await requests.bind("u:r", "k", "b/1")).bound_here


async def test_a_binding_is_kept_as_long_as_its_job_may_be(requests: Requests, store: Store) -> None:
    for request_key, timeout_ms in (("t:short", 1000), ("t:long", 3_600_000)):
        await requests.bind(request_key, "j", "a/1", timeout_ms=timeout_ms)
        left_ms = await store.do("PTTL", store.keys.request_binding(request_key))
        assert timeout_ms < left_ms <= timeout_ms + store.settings.result_ttl_ms


async def test_one_home_takes_over_when_the_creator_of_a_job_dies(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_MS", 200)
    await requests.bind("t:r", "j", "a/1")
    assert not await requests.take_over("t:r", "b/1")

    async def is_free() -> bool:
        return not (await requests.bind("t:r", "k", "b/1")).creating

    await until(is_free, 60, "the lock has expired")
    monkeypatch.undo()
    homes = [f"b{number}/1" for number in range(5)]
    taken_over = await asyncio.gather(*(requests.take_over("t:r", home) for home in homes))
    assert sum(taken_over) == 1
    assert await requests.take_over("t:r", homes[taken_over.index(True)])


async def test_only_the_bound_job_ends_a_request_s_binding(requests: Requests) -> None:
    await requests.bind("t:r", "j", "a/1")
    await requests.forget("t:r", "other")
    assert not (await requests.bind("t:r", "k", "b/1")).bound_here
    await requests.forget("t:r", "j")
    await requests.forget("t:r", "j")
    assert await requests.bind("t:r", "k", "b/1") == Binding("k", bound_here=True, creating=False)


async def test_a_binding_is_kept_while_its_job_may_still_be_created(requests: Requests) -> None:
    await requests.bind("t:r", "j", "a/1")
    assert not await requests.forget("t:r", "j", older_ms=60_000)
    assert await requests.forget("t:r", "j", older_ms=0)
