"""`penstock nodes`, `jobs` and `dlq` as people use them."""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.main import app
from pipeline.nodes import tokens
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


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
    made = penstock("nodes", "tokens", "create", "desk", "--expires", "90d")
    secret = made.stdout.strip()
    token = tokens.authenticate(context, secret, TokenKind.NODE)
    assert token is not None
    assert token.id in made.stderr
    assert secret not in made.stderr
    bound = shown("nodes", "tokens", "create", "rack 3", "--node", "rack-3")
    session = shown("nodes", "tokens", "create", "pipeline", "--kind", "session")
    assert (bound["node_id"], session["kind"]) == ("rack-3", "session")
    listed = penstock("nodes", "tokens", "list", "--json").stdout
    assert [(one["name"], one["kind"]) for one in json.loads(listed)] == [
        ("desk", "node"), ("rack 3", "node"), ("pipeline", "session"),
    ]  # fmt: skip
    assert not [one for one in (secret, bound["secret"], session["secret"]) if one in listed]
    penstock("nodes", "tokens", "revoke", "desk")
    assert tokens.authenticate(context, secret) is None
    assert "revoked" in penstock("nodes", "tokens", "list").stdout


def test_tokens_that_make_no_sense_are_refused(context: Context) -> None:
    assert refused("nodes", "tokens", "revoke", "nobody").code == "unknown_token"
    for wrong in (["x", "--kind", "owner"], ["x", "--node", "a b"], ["x", "--kind", "session", "--node", "a"], ["\t"]):
        assert refused("nodes", "tokens", "create", *wrong).code == "usage"
    assert tokens.list_tokens(context) == []
