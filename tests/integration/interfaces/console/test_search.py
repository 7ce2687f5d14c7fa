"""One search over everything: the same hits for an assistant, at the terminal and in the console's header."""

import json
import re
from html import unescape
from pathlib import Path

from starlette.testclient import TestClient
from typer.testing import CliRunner

from pipeline.flows.documents.work import text_index
from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tests.integration.documents.test_search import merged
from tests.integration.screenshots.conftest import Evidence, Hand, draft
from tests.support.assistant import use
from tests.support.knowledge import add_base
from tests.support.knowledge_texts import publish

PAGE = {"accept": "text/html"}


def test_one_search_finds_documents_knowledge_and_screenshots_everywhere(
    api: TestClient, context: Context, tmp_path: Path
) -> None:
    hand = Hand(context, tmp_path)
    batch, shots = hand.batch(app="Firefox")
    [node] = hand.analyse(batch, [draft("Buying a lantern", [shots[0]])], {shots[0]: Evidence("A lantern")})
    document = merged(context, {1: "A lantern was bought."})
    text_index.index(context, document)
    item = publish(context, add_base(context, "notes"), ["The lantern is repaired."], name="lantern.md")

    printed = CliRunner().invoke(app, ["search", "lantern", "--json"])
    assert printed.exit_code == 0, printed.output
    hits = json.loads(printed.stdout)["hits"]
    assert [(hit["flow"], hit["subject"]) for hit in hits] == [
        ("documents", document),
        ("knowledge", item),
        ("screenshots", str(node)),
    ]

    results = use(api, "search", query="lantern")["results"]
    assert [result["title"] for result in results] == [hit["title"] for hit in hits]

    form = re.search(r'<form class="find" action="([^"]+)"', api.get("/console/", headers=PAGE).text)
    assert form
    page = api.get(form[1], params={"q": "lantern"}, headers=PAGE).text
    for place in (f"documents/{document}?page=1", f"knowledge/items/{item}?at=", f"screenshots/nodes/{node}"):
        [link] = re.findall(rf'href="(/console/{re.escape(place)}[^"]*)"', page)
        assert api.get(unescape(link), headers=PAGE).status_code == 200, link
