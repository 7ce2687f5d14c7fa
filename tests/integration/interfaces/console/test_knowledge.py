"""The screens of knowledge: bases, items, chunks, additions, and the search playground."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.flows.knowledge.models import BASES, CHUNKS, ITEMS
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.interfaces.console import live
from pipeline.interfaces.console.screens.knowledge_bases import BaseQuery, QueueQuery, one_base, one_queue
from pipeline.interfaces.console.screens.knowledge_items import ItemQuery, one_item
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tasks import knowledge as flow
from tests.integration.interfaces.api.conftest import Connect
from tests.support.knowledge import add_base, add_item
from tests.support.knowledge_driver import Driver, long_text
from tests.support.provider_server import ProviderServer

KNOWLEDGE = "/console/knowledge"
PAGE = {"accept": "text/html"}
BROWSER = {**PAGE, "origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def base(context: Context) -> str:
    return add_base(context, "manuals", chunk_tokens=32, chunk_overlap=0)


def page(client: TestClient, path: str = "", **query: Any) -> str:
    answer = client.get(f"{KNOWLEDGE}{path}", params=query, headers=PAGE)
    assert answer.status_code == 200, answer.text
    return answer.text


def press(client: TestClient, path: str, code: int = 200, **fields: Any) -> str:
    """Return the page after a form, with its message."""
    came = {"referer": f"http://127.0.0.1{KNOWLEDGE}"}
    answer = client.post(f"{KNOWLEDGE}/{path}", data=fields, headers={**BROWSER, **came})
    assert answer.status_code == code, answer.text
    return answer.text


def test_a_base_is_created_changed_and_deleted(api: TestClient, context: Context) -> None:
    assert "No knowledge base yet" in page(api)
    assert "default: local" in page(api, "/new")
    created = press(api, "bases", name="manuals", description="of pumps\r\nand valves", provider="", chunk_tokens="256")
    assert "manuals is created: add something to it." in created
    [view] = flow.bases()
    assert (view.description, view.chunk_tokens, view.provider) == ("of pumps\nand valves", 256, "local")
    assert "already" in press(api, "bases", 409, name="manuals")
    press(api, "bases", 422, name="x", chunk_tokens="5")
    at = f"bases/{view.id}"
    assert "Saved." in press(api, f"{at}/settings", name="handbooks", description="", chunk_overlap="8")
    assert flow.base(view.id).name == "handbooks"
    shown = page(api, f"/{at}/settings")
    assert f'<code id="kb-id">{view.id}</code>' in shown
    assert "0 items with 0 chunks" in shown
    assert "handbooks is being deleted." in press(api, f"{at}/delete")
    assert api.get(f"{KNOWLEDGE}/{at}", headers=PAGE).status_code == 404
    assert "This base is deleted" in one_base(context, BaseQuery(base=view.id))["kb-states"]


def test_files_addresses_and_notes_are_added_and_failures_are_reported(api: TestClient, base: str) -> None:
    files = [("files", ("pump.md", b"# Pumps\n\nChange the filter.")), ("files", ("", b""))]
    at = f"{KNOWLEDGE}/bases/{base}"
    added = api.post(f"{at}/files", files=files, data={"groupName": ""}, headers=BROWSER)
    assert "1 item added." in added.text
    repeated = api.post(f"{at}/files", files=files, headers=BROWSER)
    assert (repeated.url.path, "1 other not" in repeated.text) == (f"{at}/added", True)
    assert "Nothing was added" in repeated.text
    assert "Show it" in repeated.text
    empty = api.post(f"{at}/files", files=[("files", ("", b""))], headers=BROWSER)
    assert "choose at least one file" in empty.text.lower()
    same = api.post(f"{at}/files", files=files[:1], data={"groupName": "docs"}, headers=BROWSER)
    assert "in this base already" in same.text, "a single file and the same file of a folder are one item"
    assert "<b>docs</b>" in page(api, f"/bases/{base}")
    other = [("files", ("valve.md", b"# Valves"))]
    assert "1 item added." in api.post(f"{at}/files", files=other, data={"groupName": "docs"}, headers=BROWSER).text
    assert "2 items added." in press(
        api, f"bases/{base}/texts", kind="url", text="https://a.example\r\n\r\nhttps://b.example"
    )
    assert "1 item added." in press(api, f"bases/{base}/texts", kind="note", text="under the mat", name="key")
    assert "1 item added." in press(api, f"bases/{base}/texts", kind="sitemap", text="https://a.example/s.xml")
    press(api, f"bases/{base}/texts", 422, kind="file", text="/etc/passwd")
    assert flow.tally(base).total == 6


def test_items_are_filtered_and_actions_cover_all_that_match(api: TestClient, context: Context, base: str) -> None:
    for name in ("pump.pdf", "valve.pdf"):
        add_item(context, base, ItemStatus.FAILED, name=name, error="no text was found in it")
    done = add_item(context, base, ItemStatus.COMPLETED, name="pump.md", progress=100, generation=1)
    shown = page(api, f"/bases/{base}")
    assert "All 3" in shown
    assert "no text was found in it" in shown
    failed = page(api, f"/bases/{base}", status="failed", q="pump", type="")
    assert "valve.pdf" not in failed
    assert "All 1 item that match" in failed
    assert "No item matches" in page(api, f"/bases/{base}", q="zebra")
    assert "1 item is being read again." in press(api, f"bases/{base}/items/reprocess", status="failed", q="pump")
    assert {item.name for item in flow.items(base, status=["failed"])} == {"valve.pdf"}
    assert "2 others unchanged" in press(api, f"bases/{base}/items/cancel")
    assert "3 items are being deleted" in press(api, f"bases/{base}/items/delete")
    assert "being deleted" in page(api, f"/items/{done}")


def test_folders_are_groups_that_open_and_are_retried_and_removed(
    connect: Connect, api: TestClient, context: Context, base: str
) -> None:
    for group, status in (("grp-a", ItemStatus.FAILED), ("grp-a", ItemStatus.COMPLETED), ("grp-b", ItemStatus.FAILED)):
        folder = {"type": "directory", "group_id": group, "group_name": f"/docs/{group}"}
        add_item(context, base, status, name=f"{group}-{status}.md", **folder)
    add_item(context, base, ItemStatus.COMPLETED, name="alone.md")
    closed = page(api, f"/bases/{base}")
    assert closed.count('<div class="folder">') == 2
    assert ("alone.md" in closed, "grp-a-failed.md" in closed) == (True, False)
    opened = page(api, f"/bases/{base}", group="grp-a")
    assert ("grp-a-failed.md" in opened, "grp-b-failed.md" in opened, "alone.md" in opened) == (True, False, False)
    assert opened.count('<div class="folder open">') == 1
    assert "1 item is being read again" in press(api, f"bases/{base}/items/reprocess", group="grp-a", status="failed")
    assert "2 items are being deleted" in press(api, f"bases/{base}/items/delete", group="grp-a")
    assert 'class="may-write"' not in page(connect(Scope.READ), f"/bases/{base}", group="grp-b")


def test_a_doubtful_sitemap_has_a_button_that_accepts_its_loss(api: TestClient, context: Context, base: str) -> None:
    site = add_item(context, base, ItemStatus.FAILED, type="sitemap", loss="doubtful", error="3 of 5 pages are missing")
    assert "Read without the missing pages" in page(api, f"/items/{site}")
    press(api, f"items/{site}/reprocess", accept_missing="true")
    assert flow.item(site).loss == "accepted"
    assert "Read without the missing pages" not in page(api, f"/items/{site}")


def test_chunks_are_paged_with_their_places_and_words_are_marked(api: TestClient, context: Context, base: str) -> None:
    item = Driver(context).completed(base, "# Pumps\n\n" + long_text("filter", 45))
    first = page(api, f"/items/{item}", q="filter")
    assert 'id="chunk-0"' in first
    assert 'id="chunk-20"' not in first
    assert "<mark>filter</mark>" in first
    assert re.search(r"\d+ tokens? · characters", first)
    assert 'class="headings">Pumps' in first
    later = page(api, f"/items/{item}", at=25)
    assert 'id="chunk-25"' in later
    assert 'id="chunk-19"' not in later
    assert "at=40" in later
    assert "No chunk here" in page(api, f"/items/{item}", at=4000)
    text = page(api, f"/items/{item}/text")
    assert "<h1>Pumps</h1>" in text
    file = api.get(f"{KNOWLEDGE}/items/{item}/file")
    assert file.headers["content-disposition"].startswith("attachment")
    assert "is being read again" in press(api, f"items/{item}/reprocess")
    assert 'id="kb-item"' in one_item(context, ItemQuery(item=item))["kb-item"]
    assert "The item is stopped." in press(api, f"items/{item}/cancel")
    assert "is being deleted." in press(api, f"items/{item}/delete")
    assert "This item is deleted" in one_item(context, ItemQuery(item="0123"))["kb-item"]


def test_a_base_shows_a_live_banner_of_its_orphans(api: TestClient, context: Context, base: str) -> None:
    query, queue = BaseQuery(base=base), QueueQuery(base=base)
    assert 'id="kb-orphans" role="status" hidden' in page(api, f"/bases/{base}")
    add_item(context, base, ItemStatus.PREPROCESSING, admitted_at=context.db.now(), name="lost.pdf")
    for path in (f"/bases/{base}", f"/bases/{base}/queue"):
        shown = page(api, path)
        assert shown.index("1 unfinished item has no worker and no message. Recover it?") < shown.index("<h1>")
        assert f'action="{KNOWLEDGE}/bases/{base}/queue/recover"' in shown
        assert f'action="{KNOWLEDGE}/bases/{base}/queue/dismiss"' in shown
        view = "knowledge-queue" if path.endswith("queue") else "knowledge-base"
        assert f"view={view}" in shown, "a stream brings later orphans"
    for fragments in (one_base(context, query), one_queue(context, queue)):
        assert "no worker and no message" in fragments["kb-orphans"]
    assert "lost.pdf" in one_queue(context, queue)["kb-queue"]
    assert "1 item given up." in press(api, f"bases/{base}/queue/dismiss")
    assert "No orphans to recover." in press(api, f"bases/{base}/queue/recover")
    for fragments in (one_base(context, query), one_queue(context, queue)):
        assert "hidden" in fragments["kb-orphans"]
    assert "Nothing waits" in one_queue(context, queue)["kb-queue"]
    assert live.VIEWS["knowledge-queue"].matches(queue).flow == "knowledge"


def test_hits_show_their_ranks_and_open_at_their_chunk(api: TestClient, context: Context, base: str) -> None:
    other = add_base(context, "others")
    driver = Driver(context)
    item = driver.completed(base, long_text("filter", 25))
    driver.completed(other, "A zebra stands by the pump.")
    assert "Searches are free" in page(api, "/search")
    results = page(api, "/search", q="filter 22", base=base, limit=5)
    assert f'href="{KNOWLEDGE}/items/{item}?at=22&amp;q=filter+22#chunk-22"' in results
    assert re.search(r"words: \d", results)
    assert 'method="get"' in results
    assert page(api, "/search", q="zebra").count('class="sheet hit"') == 1
    assert "No hits" in page(api, "/search", q="zebra", base=base, meaning="false")
    assert "No hits" in page(api, "/search", q="zebra", type="file", threshold="")
    for wrong in ({"limit": 0}, {"threshold": 2}, {"q": "x" * 4001}, {"base": "nonsense"}):
        assert api.get(f"{KNOWLEDGE}/search", params=wrong, headers=PAGE).status_code == 422
    assert api.get(f"{KNOWLEDGE}/search", params={"q": "a", "base": "0123"}, headers=PAGE).status_code == 404


def test_texts_of_users_files_are_escaped(api: TestClient, context: Context, base: str) -> None:
    item = Driver(context).completed(base, f"Pumps {HOSTILE} [a](javascript:alert(1)) <script>alert(2)</script>")

    def spoil(session: Any) -> None:
        evil = {"name": HOSTILE, "title": HOSTILE, "error": HOSTILE, "warning": HOSTILE, "group_name": HOSTILE}
        session.execute(update(ITEMS).values(**evil, url="javascript:alert(1)"))
        session.execute(update(CHUNKS).values(heading=f'["{HOSTILE}"]', source=HOSTILE))
        session.execute(update(BASES).values(name=HOSTILE, description=HOSTILE))

    context.db.run(spoil)
    base_page = f"/bases/{base}"
    paths = ("", base_page, f"{base_page}/settings", f"{base_page}/queue", f"{base_page}/add", "/search?q=pumps")
    for path in (*paths, f"/items/{item}", f"/items/{item}?q=img", f"/items/{item}/text"):
        shown = api.get(f"{KNOWLEDGE}{path}", headers=PAGE).text
        assert HOSTILE not in shown, path
        assert "<script>alert" not in shown, path
        assert 'href="javascript' not in shown, path


def test_a_reader_sees_all_and_changes_nothing(connect: Connect, context: Context, base: str) -> None:
    item = add_item(context, base, name="pump.pdf")
    reads = connect(Scope.READ)
    shown = page(reads, f"/bases/{base}") + page(reads, f"/items/{item}") + page(reads, f"/bases/{base}/settings")
    assert '<form class="act"' not in shown
    assert "Delete" not in shown
    assert reads.post(f"{KNOWLEDGE}/items/{item}/delete", headers=BROWSER).status_code == 403


class TestWithAProvider:
    @pytest.fixture
    def provider(self) -> Iterator[ProviderServer]:
        with ProviderServer() as server:
            yield server

    @pytest.fixture
    def settings_env(self, provider: ProviderServer) -> dict[str, str]:
        return {
            "PENSTOCK_PROVIDERS__EMB__BASE_URL": provider.base_url,
            "PENSTOCK_PROVIDERS__EMB__MODEL": "embedder",
            "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": "emb",
        }

    def test_a_paid_answer_is_kept_for_back_and_not_paid_twice(
        self, connect: Connect, context: Context, base: str, provider: ProviderServer
    ) -> None:
        Driver(context).completed(base, "The filter of the pump is changed monthly.")
        paid = len(provider.records)
        client, other = connect(Scope.READ), connect(Scope.READ)
        assert 'method="post"' in page(client, "/search")
        assert "has expired" in page(client, "/search", q="filter")
        assert len(provider.records) == paid, "a link costs nothing"
        answer = client.post(f"{KNOWLEDGE}/search", data={"q": "filter", "base": base}, headers=BROWSER)
        assert 'class="sheet hit"' in answer.text
        assert len(provider.records) == paid + 1
        address = str(answer.url).removeprefix("http://127.0.0.1")
        assert 'class="sheet hit"' in client.get(address, headers=PAGE).text
        assert 'class="sheet hit"' not in other.get(address, headers=PAGE).text, "another caller paid for it"
        by_words = client.post(f"{KNOWLEDGE}/search", data={"q": "filter", "meaning": "false"}, headers=BROWSER)
        assert 'class="sheet hit"' in by_words.text
        assert "kept=" not in str(by_words.url)
        assert len(provider.records) == paid + 1
