"""`penstock nodes`, `penstock jobs` and `penstock dlq`."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.main import app
from pipeline.nodes import names, service, tokens
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.support.node_state import NodeStateDriver


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_GATEWAY__DLQ_MIN_IDLE_MS": "1", "PENSTOCK_GATEWAY__STREAM_BLOCK_MS": "10"}


@pytest.fixture
def state(context: Context) -> NodeStateDriver:
    """An instance with a node that works on a job."""
    driver = NodeStateDriver(context)
    driver.instance("a", nodes=1, sessions=1)
    token = tokens.create(context, "desk", TokenKind.NODE)[1]
    driver.node("n", "a", token_id=token.id, used=1)
    driver.job("job", "a", node_id="n")
    return driver


def penstock(*arguments: str, code: int = 0) -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == code, result.output
    return result


def shown(*arguments: str) -> Any:
    return json.loads(penstock(*arguments, "--json").stdout)


def refused(*arguments: str) -> UserError:
    error = penstock(*arguments, code=1).exception
    assert isinstance(error, UserError)
    return error


def test_tokens_are_made_listed_and_revoked(context: Context) -> None:
    created = penstock("nodes", "tokens", "create", "desk", "--expires", "90d")
    secret = created.stdout.strip()
    token = tokens.authenticate(context, secret, TokenKind.NODE)
    assert token is not None
    assert token.id in created.stderr
    assert secret not in created.stderr
    bound = shown("nodes", "tokens", "create", "rack 3", "--node", "rack-3")
    session = shown("nodes", "tokens", "create", "pipeline", "--kind", "session")
    assert (bound["node_id"], session["kind"]) == ("rack-3", "session")
    listed = penstock("nodes", "tokens", "list", "--json").stdout
    assert [(row["name"], row["kind"]) for row in json.loads(listed)] == [
        ("desk", "node"),
        ("rack 3", "node"),
        ("pipeline", "session"),
    ]
    assert not [each for each in (secret, bound["secret"], session["secret"]) if each in listed]
    penstock("nodes", "tokens", "revoke", "desk")
    assert tokens.authenticate(context, secret) is None
    assert "revoked" in penstock("nodes", "tokens", "list").stdout


def test_invalid_tokens_are_refused(context: Context) -> None:
    assert refused("nodes", "tokens", "revoke", "nobody").code == "unknown_token"
    for wrong in (["x", "--kind", "owner"], ["x", "--node", "a b"], ["x", "--kind", "session", "--node", "a"], ["\t"]):
        assert refused("nodes", "tokens", "create", *wrong).code == "usage"
    assert tokens.list_tokens(context) == []


def test_nodes_are_listed_shown_and_drained(state: NodeStateDriver) -> None:
    assert [(node["node_id"], node["status"]) for node in shown("nodes", "list")] == [("n", "connected")]
    assert "connected" in penstock("nodes", "list").stdout
    assert shown("nodes", "show", "n")["jobs"] == ["job"]
    text = penstock("nodes", "show", "n").stdout
    assert "desk" in text
    assert "offers text" in text
    assert "1 job" in penstock("nodes", "drain", "n", "--reason", "painting").stderr
    assert [node.body["reason"] for node in state.messages("a")] == ["painting"]
    assert refused("nodes", "drain", "x").code == refused("nodes", "show", "x").code == "unknown_node"


def test_revoking_a_node_says_whether_it_can_reconnect(context: Context, state: NodeStateDriver) -> None:
    message = penstock("nodes", "revoke", "n").stderr
    assert "not for this node alone" in message
    assert "penstock nodes tokens revoke" in message
    own = tokens.create(context, "rack 3", TokenKind.NODE, node_id="m")[1]
    state.node("m", "a", token_id=own.id)
    state.node("mm", "a")
    assert "is revoked" in penstock("nodes", "revoke", "m").stderr
    assert tokens.still_usable(context, [own.id]) == set()
    assert shown("nodes", "revoke", "n")["tokens"] == []


def test_a_name_is_freed_when_its_node_has_gone(context: Context, state: NodeStateDriver) -> None:
    token = tokens.create(context, "rack", TokenKind.NODE)[1]
    for node_id in ("n", "rack-3"):
        names.take(context, node_id, token, 2)
    assert "`penstock nodes drain n`" in str(refused("nodes", "free", "n"))
    assert penstock("nodes", "free", "rack").stderr == "rack-3: free for the next token\n"
    assert str(refused("nodes", "free", "rack-3")) == "no token has used the name rack-3"


def test_the_status_counts_nodes_and_says_what_is_missing(context: Context) -> None:
    text = penstock("nodes", "status").stdout
    assert "`penstock gateway` runs one" in text
    assert "No jobs" in penstock("jobs", "list").stderr
    NodeStateDriver(context).instance("a", nodes=2, sessions=1)
    assert "2 nodes, 1 session, 0 messages to read" in penstock("nodes", "status").stdout
    assert shown("nodes", "status")["sessions"] == 1


def test_jobs_are_listed_shown_and_cancelled(state: NodeStateDriver) -> None:
    assert [job["job_id"] for job in shown("jobs", "list", "--state", "dispatched")] == ["job"]
    assert shown("jobs", "list", "--state", "running") == []
    assert "DISPATCHED" in penstock("jobs", "list").stdout
    assert "1 of 3" in penstock("jobs", "show", "jo").stdout, "an id may be shortened"
    assert "will cancel it" in penstock("jobs", "cancel", "job").stderr
    state.instance_dies("a")
    assert "cancelled" in penstock("jobs", "cancel", "job").stderr
    assert shown("jobs", "show", "job")["outcome"] == "cancelled"
    assert refused("jobs", "show", "x").code == "unknown_job"
    penstock("jobs", "list", "--state", "eaten", code=2)


def test_dead_letters_are_listed_replayed_and_dropped(context: Context, state: NodeStateDriver) -> None:
    for number in ("one", "two"):
        state.dead_letter("a", "assign", job_id=number)
    service.tend(context)
    letters = {letter["body"]["job_id"]: letter["id"] for letter in shown("dlq", "list")}
    assert "job_id one" in penstock("dlq", "list").stdout
    assert "penstock dlq list" in penstock("nodes", "status").stdout
    penstock("dlq", "replay", "a", letters["one"])
    penstock("dlq", "drop", "a", letters["two"])
    assert [letter.body for letter in state.messages("a")] == [{"job_id": "one"}]
    assert shown("dlq", "list") == []
    assert refused("dlq", "drop", "a", letters["two"]).code == "unknown_letter"


def test_a_gateway_reachable_from_other_machines_needs_a_token_first(context: Context) -> None:
    error = refused("gateway", "--host", "0.0.0.0", "--port", "0")
    assert error.code == "no_token"
    assert "penstock nodes tokens create" in str(error)


def test_the_doctor_warns_of_a_gateway_without_nodes(context: Context, state: NodeStateDriver) -> None:
    hint = "`penstock node` on a suitable machine"
    assert hint not in CliRunner().invoke(app, ["doctor"]).output
    state.node_goes("n", "a")
    assert hint in CliRunner().invoke(app, ["doctor"]).output


def test_an_invalid_certificate_is_reported_in_a_sentence(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for path in (junk, tmp_path / "missing.pem"):
        monkeypatch.setenv("PENSTOCK_GATEWAY__TLS_CERTIFICATE", str(path))
        monkeypatch.setenv("PENSTOCK_GATEWAY__TLS_KEY", str(path))
        assert "are not a PEM certificate and its key" in str(refused("gateway", "--port", "0"))


class TestWithoutRedis:
    """Commands while the embedded Redis is down."""

    @pytest.fixture
    def redis_url(self) -> str:
        return ""

    def test_commands_say_how_to_start_the_gateway(self, context: Context) -> None:
        for command in (["nodes", "list"], ["jobs", "list"], ["dlq", "list"], ["nodes", "status"], ["gateway"]):
            assert "`penstock up` starts one" in str(refused(*command))
