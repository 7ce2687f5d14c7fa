"""An operator's calls reach nodes, sessions and jobs. Raw connections stand in for nodes and sessions."""

from pipeline.nodes import service
from pipeline.nodes.job import JobState
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.support.gateway import GatewayThread, RawNode, RawSession, token
from tests.support.waiting import wait_until


def test_a_drained_node_gets_the_reason_and_no_further_jobs(context: Context) -> None:
    with GatewayThread(context) as gateway, RawNode(gateway.url, token(context, TokenKind.NODE), "desk") as node:
        wait_until(lambda: service.nodes(context), 60, "the node is listed")
        service.drain(context, "desk", "painting")
        assert node.until("drain")["reason"] == "painting"
        wait_until(lambda: service.node(context, "desk").status == "draining", 60, "the node's status is draining")


def test_a_cancelled_job_ends_for_node_and_session(context: Context) -> None:
    node_token, session_token = token(context, TokenKind.NODE), token(context, TokenKind.SESSION, "pipeline")
    with (
        GatewayThread(context) as gateway,
        RawNode(gateway.url, node_token, "desk") as node,
        RawSession(gateway.url, session_token) as session,
    ):
        session.ask()
        job = node.job()
        (dispatched,) = service.jobs(context, JobState.DISPATCHED)
        assert (dispatched.job_id, dispatched.node_id, dispatched.token) == (job["job_id"], "desk", "pipeline")
        wait_until(lambda: service.nodes(context), 60, "the node is listed")
        assert service.node(context, "desk").jobs == [dispatched.job_id]
        service.cancel(context, dispatched.job_id)
        assert session.result()["error"]["code"] == "cancelled"
        assert node.until("job_cancel")["job_id"] == dispatched.job_id
        wait_until(
            lambda: service.job(context, dispatched.job_id).state is JobState.RELEASED, 60, "the job's slot is free"
        )
        assert service.node(context, "desk").jobs == []


def test_revoked_nodes_and_tokens_lose_their_connections(context: Context) -> None:
    own, shared = token(context, TokenKind.NODE, "rack", "rack-3"), token(context, TokenKind.SESSION, "pipeline")
    with (
        GatewayThread(context) as gateway,
        RawNode(gateway.url, own, "rack-3") as node,
        RawSession(gateway.url, shared) as session,
    ):
        wait_until(lambda: service.status(context).sessions, 60, "the session is counted")
        assert service.revoke(context, "rack-3").was_connected
        assert node.until("nothing").code == 4401
        service.revoke_token(context, "pipeline")
        assert session.until("nothing").code == 4401
        with RawNode(gateway.url, own, "rack-3") as reconnected:
            assert 4401 in (reconnected.welcome.code, reconnected.until("welcome").code)
