"""`penstock kb search`."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tests.support.knowledge import add_base
from tests.support.knowledge_texts import publish


@pytest.fixture
def filled(context: Context) -> Context:
    for name in ("sea", "land"):
        publish(
            context,
            add_base(context, name),
            [f"The lantern of the {name}.", "Nothing else."],
            heading=["One", "Two"],
            name=f"{name}.md",
        )
    return context


def kb_search(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["kb", "search", *arguments])


def shown(*arguments: str) -> Any:
    result = kb_search(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_hits_are_shown_with_their_places(filled: Context) -> None:
    text = kb_search("sea", "lantern").output
    for part in ("1.00", "sea.md", "page 1, One > Two", "The lantern of the sea.", "are lexical"):
        assert part in text
    assert "land.md" not in text
    assert "Nothing found." in kb_search("sea", "land", "unheard").output


def test_bases_and_options_limit_the_search(filled: Context) -> None:
    assert {hit["base_name"] for hit in shown("sea", "land", "lantern")["hits"]} == {"sea", "land"}
    assert {hit["base_name"] for hit in shown("--all", "lantern")["hits"]} == {"sea", "land"}
    assert shown("--all", "lantern", "--type", "url")["hits"] == []
    assert len(shown("--all", "lantern", "--limit", "1")["hits"]) == 1
    (hit,) = shown("land", "lantern", "--no-vectors", "--around", "1", "--since", "1h")["hits"]
    assert (hit["vector_rank"], hit["after"]) == (None, ["Nothing else."])


@pytest.mark.parametrize("arguments", [["lantern"], ["sea", "--all", "lantern"], ["sea", "x", "--min-score", "2"], []])
def test_invalid_search_options_are_refused(context: Context, arguments: list[str]) -> None:
    assert kb_search(*arguments).exit_code == 2


def test_an_unknown_base_is_named(context: Context) -> None:
    result = kb_search("nowhere", "lantern")
    assert "nowhere" in str(result.exception)
