"""An operator's calls to the gateway, on the state that instances leave in Redis."""

import time

import pytest
from redis import RedisError

from pipeline.engine.errors import UserError
from pipeline.engine.leases import lease_key
from pipeline.nodes import service, tokens
from pipeline.nodes.job import JobState
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.slots import Slots
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tasks import nodes as beat
from tests.support.node_state import NodeStateDriver
from tests.support.redis_server import RedisServer


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_GATEWAY__DLQ_MIN_IDLE_MS": "1", "PENSTOCK_GATEWAY__STREAM_BLOCK_MS": "10"}


@pytest.fixture
def state(context: Context) -> NodeStateDriver:
    return NodeStateDriver(context)


def token(context: Context, name: str, node_id: str = "") -> str:
    return tokens.create(context, name, TokenKind.NODE, node_id=node_id)[1].id


def test_connected_and_gone_nodes_of_all_instances_are_listed(context: Context, state: NodeStateDriver) -> None:
    desk = token(context, "desk")
    state.node("works", "a", token_id=desk, used=1)
    state.node("drains", "b", draining=True)
    state.node("went", "b")
    state.node_goes("went", "b")
    state.job("job", "a", node_id="works")
    nodes = {node.node_id: node for node in service.nodes(context)}
    assert {name: str(node.status) for name, node in nodes.items()} == {
        "works": "connected",
        "drains": "draining",
        "went": "gone",
    }
    assert (nodes["works"].token, nodes["works"].used, nodes["works"].latency_ms) == ("desk", 1, {"text": 120.0})
    assert nodes["went"].last_seen_at is not None
    assert service.node(context, "works").jobs == ["job"]
    with pytest.raises(UserError, match="no node with the id nobody"):
        service.node(context, "nobody")


def test_a_node_is_drained_by_the_instance_it_is_connected_to(context: Context, state: NodeStateDriver) -> None:
    state.instance("a")
    state.instance("b")
    state.node("n", "b")
    assert service.drain(context, "n", "painting").node_id == "n"
    assert [(message.kind, message.body) for message in state.messages("b")] == [
        ("drain_node", {"node_id": "n", "reason": "painting"})
    ]
    assert state.messages("a") == []
    with pytest.raises(UserError, match="no node with the id nobody"):
        service.drain(context, "nobody")


def test_revoking_a_node_revokes_its_own_token(context: Context, state: NodeStateDriver) -> None:
    state.instance("a")
    own, other = token(context, "rack 3", node_id="n"), token(context, "rack 4", node_id="m")
    state.node("n", "a", token_id=own)
    done = service.revoke(context, "n")
    assert (done.was_connected, [revoked_token.id for revoked_token in done.tokens], done.shared_token) == (
        True,
        [own],
        None,
    )
    assert tokens.still_usable(context, [own, other]) == {other}
    messages = [(message.kind, message.body) for message in state.messages("a")]
    assert messages[0] == ("token_revoked", {"token_id": own})
    assert (messages[1][0], messages[1][1]["node_id"]) == ("close_node", "n")
    offline = service.revoke(context, "m")
    assert (offline.was_connected, [revoked_token.id for revoked_token in offline.tokens]) == (False, [other]), (
        "a node that is away cannot connect again"
    )


def test_a_shared_token_is_kept_and_named(context: Context, state: NodeStateDriver) -> None:
    state.instance("a")
    shared = token(context, "all desks")
    state.node("n", "a", token_id=shared)
    done = service.revoke(context, "n")
    assert (done.was_connected, done.tokens) == (True, [])
    assert done.shared_token is not None
    assert done.shared_token.id == shared
    assert tokens.still_usable(context, [shared]) == {shared}
    with pytest.raises(UserError, match="no node with the id nobody"):
        service.revoke(context, "nobody")


def test_all_instances_are_notified_of_a_revoked_token(context: Context, state: NodeStateDriver) -> None:
    state.instance("a")
    state.instance("b")
    ended = token(context, "desk")
    assert service.revoke_token(context, "desk").id == ended
    for instance_id in ("a", "b"):
        assert [message.body for message in state.messages(instance_id)] == [{"token_id": ended}]


def test_a_token_is_revoked_although_instances_cannot_be_notified(context: Context, redis_server: RedisServer) -> None:
    ended = token(context, "desk")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(service, "_NOTIFY_S", 0.2)
        redis_server.kill()
        assert service.revoke_token(context, "desk").id == ended
    assert tokens.still_usable(context, [ended]) == set()


def test_jobs_are_listed_by_state_the_newest_first(context: Context, state: NodeStateDriver) -> None:
    session = tokens.create(context, "pipeline", TokenKind.SESSION)[1].id
    for number in range(3):
        state.job(f"job-{number}", "a", requester=session, node_id="n" if number == 1 else "")
    assert [job.job_id for job in service.jobs(context)] == ["job-2", "job-1", "job-0"]
    assert [job.job_id for job in service.jobs(context, limit=1)] == ["job-2"]
    (dispatched,) = service.jobs(context, JobState.DISPATCHED)
    assert (dispatched.job_id, dispatched.node_id, dispatched.instance_id, dispatched.token) == (
        "job-1",
        "n",
        "a",
        "pipeline",
    )
    created = service.job(context, "job-0")
    assert (created.state, created.outcome, created.finished_at) == (JobState.CREATED, "", None)
    with pytest.raises(UserError, match="no job"):
        service.job(context, "nothing")


def test_the_home_of_a_job_cancels_it_or_another_instance_if_the_home_is_dead(
    context: Context, state: NodeStateDriver
) -> None:
    state.instance("a")
    state.instance("b")
    state.job("job", "b")
    assert service.cancel(context, "job").state is JobState.CREATED, "the cancellation is requested"
    assert [(message.kind, message.body) for message in state.messages("b")] == [("cancel_job", {"job_id": "job"})]
    state.instance_dies("b")
    service.cancel(context, "job")
    assert [message.kind for message in state.messages("a")] == ["cancel_job"]
    with pytest.raises(UserError, match="no job"):
        service.cancel(context, "nothing")


def test_without_any_instance_a_job_ends_where_it_is_cancelled(context: Context, state: NodeStateDriver) -> None:
    state.instance("a")
    state.job("job", "a", node_id="n")
    state.instance_dies("a")
    ended = service.cancel(context, "job")
    assert (ended.state, ended.outcome, ended.error_code) == (JobState.FINISHED, "cancelled", "cancelled")
    assert state.do(lambda store: Slots(store).held("n")) == {}
    assert b"cancelled by the operator" in (state.do(lambda store: Jobs(store).result("job")) or b"")
    assert service.cancel(context, "job") == ended, "harmless"


def test_dead_letters_are_shown_replayed_and_dropped(context: Context, state: NodeStateDriver) -> None:
    state.instance("a")
    state.dead_letter("a", "assign", job_id="one")
    state.dead_letter("a", "cancel", job_id="two")
    assert service.dlq(context) == []
    assert service.tend(context).dlq_moved == 2
    letters = {entry.kind: entry for entry in service.dlq(context)}
    assert letters["assign"].body == {"job_id": "one"}
    assert letters["assign"].deliveries > 5
    assert service.status(context).dead_letters == 2
    service.replay(context, "a", letters["assign"].id)
    service.drop(context, "a", letters["cancel"].id)
    assert [entry.body for entry in state.messages("a")] == [{"job_id": "one"}]
    assert service.dlq(context) == []
    for act in (service.replay, service.drop):
        with pytest.raises(UserError, match="no dead letter"):
            act(context, "a", letters["cancel"].id)
    state.dead_letter("a", "assign", job_id="three")
    service.tend(context)
    assert service.status(context).dead_letters_moved == 3, "the total over all time"


def test_the_status_sums_up_the_gateway(context: Context, state: NodeStateDriver) -> None:
    state.instance("a", nodes=2, sessions=3)
    state.instance("b", sessions=1)
    state.node("n", "a", used=1)
    state.node("m", "a", slots=4, draining=True)
    state.instance("dead", sessions=7)
    state.instance_dies("dead")
    state.job("one", "a", node_id="n")
    state.job("two", "a")
    state.do(lambda store: Waiting(store).enter("text:m", "two", "s", "a/boot", 60_000))
    service.drain(context, "n")
    status = service.status(context)
    assert {
        instance.instance_id: (instance.alive, instance.sessions, instance.messages) for instance in status.instances
    } == {
        "a": (True, 3, 1),
        "b": (True, 1, 0),
        "dead": (False, 0, 0),
    }
    assert {str(name): count for name, count in status.nodes.items()} == {"connected": 1, "draining": 1, "gone": 0}
    assert (status.slots, status.used, status.sessions, status.inbox_messages) == (6, 1, 4, 1)
    assert {str(name): count for name, count in status.jobs.items() if count} == {"CREATED": 1, "DISPATCHED": 1}
    assert status.waiting == {"text:m": 1}


def test_a_silent_redis_is_an_error_after_the_patience(context: Context, redis_server: RedisServer) -> None:
    redis_server.fall_silent()
    try:
        start = time.monotonic()
        with pytest.raises(RedisError, match="did not answer"):
            service.status(context, patience_s=0.3)
        assert time.monotonic() - start < 30
    finally:
        redis_server.kill()


class TestBeat:
    """`maintenance.tend_nodes`."""

    def test_beat_does_nothing_without_tokens(self, context: Context, state: NodeStateDriver) -> None:
        state.instance("a")
        state.dead_letter("a")
        assert beat.tend_nodes() == 0
        assert service.dlq(context) == []

    def test_one_beat_takes_a_tick_and_does_the_due_work(self, context: Context, state: NodeStateDriver) -> None:
        token(context, "desk")
        state.instance("a")
        state.dead_letter("a")
        assert beat.tend_nodes() == 1
        state.dead_letter("a")
        assert beat.tend_nodes() == 0, "another beat has taken this tick"
        assert len(service.dlq(context)) == 1


class TestBeatWithoutItsRedis:
    """Beat while the gateway's own Redis is away."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_GATEWAY__REDIS__URL": "redis://127.0.0.1:1/0"}

    def test_beat_waits_before_it_retries(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        token(context, "desk")
        monkeypatch.setattr(beat, "_PATIENCE_S", 0.2)
        assert beat.tend_nodes() == 0
        later_ms = (time.time() + beat.AWAY_S / 2) * 1000
        assert context.redis.zcount(lease_key("tick:nodes"), later_ms, "+inf") == 1
