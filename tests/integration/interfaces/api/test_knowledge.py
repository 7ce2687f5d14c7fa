"""`/knowledge-bases` and `/knowledge-items`: the rules of docs/sources/knowledge.md and of Penstock."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.flows.knowledge.states import ItemStatus
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_skeleton import problem
from tests.support import samples
from tests.support.knowledge import add_base, add_item
from tests.support.knowledge_driver import Driver

BASES, ITEM = "/knowledge-bases", "/knowledge-items"


@pytest.fixture
def base(context: Context) -> str:
    return add_base(context, "manuals")


def upload(api: TestClient, base: str, *names: str, **fields: str) -> Any:
    files = [("files", (name, f"text of {name}".encode())) for name in names]
    return api.post(f"{BASES}/{base}/items", files=files, data=fields)


def test_bases_are_made_listed_edited_and_deleted(api: TestClient) -> None:
    created = api.post(f"/api/v1{BASES}", json={"name": "manuals", "chunkTokens": 256})
    assert created.status_code == 201, created.text
    assert created.headers["location"] == f"/api/v1{BASES}/{created.json()['id']}"
    assert (created.json()["chunkTokens"], created.json()["provider"], created.json()["items"]) == (256, "local", {})
    problem(api.post(BASES, json={"name": "manuals"}), 409, "exists")
    problem(api.post(BASES, json={"name": "x", "path": "/etc"}), 422, "invalid")
    problem(api.post(BASES, json={"name": "x", "provider": "nobody"}), 422, "unknown_provider")
    second = api.post(BASES, json={"name": "zebras"}).json()
    page = api.get(BASES, params={"limit": 1}).json()
    rest = api.get(BASES, params={"cursor": page["next_cursor"]}).json()
    assert [item["name"] for item in [*page["items"], *rest["items"]]] == ["manuals", "zebras"]
    assert [item["id"] for item in api.get(BASES, params={"q": "ZEB"}).json()["items"]] == [second["id"]]
    at = f"{BASES}/{second['id']}"
    assert api.patch(at, json={"name": "horses", "description": "with stripes"}).json()["name"] == "horses"
    assert api.get(at).json()["description"] == "with stripes"
    deleted = api.delete(at)
    assert (deleted.status_code, deleted.json()["deleting"]) == (202, True)
    problem(api.get(at), 404, "unknown_base")
    assert sorted(item["deleting"] for item in api.get(BASES).json()["items"]) == [False, True]


def test_an_item_has_the_shape_of_the_design(api: TestClient, base: str) -> None:
    added = api.post(f"{BASES}/{base}/items", json={"type": "url", "data": {"url": "https://example.com/a"}})
    assert added.status_code == 202, added.text
    assert added.json()["failed"] == []
    created = added.json()["created"][0]
    assert added.headers["location"] == f"/api/v1{ITEM}/{created['id']}"
    shown = api.get(added.headers["location"]).json()
    assert shown == created | {"updatedAt": shown["updatedAt"]}
    assert api.get(f"{ITEM}/{created['id']}").json() == shown
    source = ("id", "baseId", "type", "status", "error", "createdAt", "updatedAt", "progress", "deleting")
    assert set(source) <= shown.keys()
    assert (shown["baseId"], shown["type"], shown["status"], shown["progress"]) == (base, "url", "pending", 0)
    assert shown["data"] == {"url": "https://example.com/a", "name": "https://example.com/a"}
    problem(api.get(f"{ITEM}/0123"), 404, "unknown_item")
    problem(api.get(f"{ITEM}/..%2f"), 404, "not_found")


def test_a_hundred_files_are_added_at_once_and_repeated_files_are_recognised(
    api: TestClient, base: str, context: Context
) -> None:
    names = [f"page{number}.md" for number in range(100)]
    added = upload(api, base, *names, groupName="docs")
    assert added.status_code == 202, added.text
    created = added.json()["created"]
    assert [item["name"] for item in created] == names
    groups = {(item["type"], item["groupName"], item["groupId"]) for item in created}
    assert len(groups) == 1
    group = created[0]["groupId"]
    file = {"name": "page0.md", "size": len("text of page0.md")}
    assert created[0]["data"] == {"groupId": group, "groupName": "docs", "file": file}
    second = upload(api, base, "page0.md", "../../new.md", groupName="docs").json()
    assert [(item["name"], item["groupId"]) for item in second["created"]] == [("new.md", group)]
    assert [(item["path"], item["code"], item["itemId"]) for item in second["failed"]] == [
        ("page0.md", "duplicate", created[0]["id"])
    ]
    walked, cursor = [], None
    while True:
        page = api.get(f"{BASES}/{base}/items", params={"limit": 60, "groupId": group, "cursor": cursor or ""}).json()
        walked += [item["id"] for item in page["items"]]
        if not (cursor := page["next_cursor"]):
            break
    assert walked == [item["id"] for item in created + second["created"]]
    uploads = context.settings.upload_dir
    assert not [path for path in uploads.iterdir() if path.name.startswith("incoming-")]


def test_a_batch_succeeds_in_part_and_paths_are_never_read(api: TestClient, base: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    at = f"{BASES}/{base}/items"
    mixed = api.post(
        at,
        json={
            "items": [
                {"type": "note", "content": "# Keys\nunder the mat"},
                {"type": "file", "data": {"path": str(secret)}},
                {"type": "directory", "path": str(tmp_path)},
                {"type": "url", "url": "file:///etc/passwd"},
                {"type": "url", "url": "http://user:secret@example.com/"},
                {"type": "sitemap", "url": "https://example.com/sitemap.xml", "name": "site"},
            ]
        },
    )
    assert mixed.status_code == 202, mixed.text
    assert [(item["type"], item["name"]) for item in mixed.json()["created"]] == [
        ("note", "Keys.md"),
        ("sitemap", "site"),
    ]
    assert sorted(item["code"] for item in mixed.json()["failed"]) == ["bad_url", "bad_url", "upload", "upload"]
    assert "multipart/form-data" in next(item["error"] for item in mixed.json()["failed"] if item["code"] == "upload")
    refused = api.post(at, json=[{"type": "file", "path": str(secret)}])
    problem(refused, 422, "upload")
    assert (refused.json()["created"], len(refused.json()["failed"])) == ([], 1)
    problem(api.post(at, json={"type": "note", "content": "# Keys\nunder the mat"}), 409, "duplicate")
    for wrong in ("[]", "{", "[[[", '{"type": "pdf"}', '{"type": "url", "url": 1}', '"\\ud800"', "null"):
        problem(api.post(at, content=wrong, headers={"content-type": "application/json"}), 422, "invalid")
    problem(api.post(at, data={"groupName": "x"}, files={"a": ("a.md", b"")}), 422, "empty")
    problem(upload(api, base, "a.md", path="/etc"), 422, "invalid")
    problem(upload(api, base, "a.md", groupName="\x00"), 422, "invalid")
    problem(upload(api, "0123", "a.md"), 404, "unknown_base")


class TestFullQueue:
    """A queue that holds `knowledge.max_queue_size` items."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_KNOWLEDGE__MAX_QUEUE_SIZE": "2", "PENSTOCK_KNOWLEDGE__GLOBAL_CONCURRENCY": "1"}

    def test_items_beyond_the_queue_limit_are_reported_and_a_full_queue_is_503(
        self, api: TestClient, base: str
    ) -> None:
        notes = [{"type": "note", "content": f"note {number}"} for number in range(4)]
        added = api.post(f"{BASES}/{base}/items", json=notes).json()
        assert [failure["code"] for failure in added["failed"]] == ["queue_full", "queue_full"]
        api.post(f"{BASES}/{base}/items", json=notes)  # the number of items that have started
        full = api.post(f"{BASES}/{base}/items", json={"items": [{"type": "note", "content": "one more"}]})
        problem(full, 503, "queue_full")
        assert int(full.headers["retry-after"]) > 0


def test_progress_and_deletion_are_combined_as_the_design_prescribes(
    api: TestClient, context: Context, base: str
) -> None:
    done = add_item(context, base, ItemStatus.COMPLETED, progress=100, generation=1, position=1)
    failed = add_item(context, base, ItemStatus.FAILED, progress=72, error="no", position=2)

    def progress(item_id: str, **params: Any) -> Any:
        return api.get(f"{ITEM}/{item_id}", params=params).json()["progress"]

    assert (progress(done), progress(failed), progress(failed, includeProgress="false")) == (100, 72, None)
    listed = api.get(f"{BASES}/{base}/items", params={"includeProgress": "false"}).json()["items"]
    assert [item["progress"] for item in listed] == [None, None]
    reprocessed = api.post(f"{ITEM}/{failed}/reprocess")
    assert (reprocessed.status_code, reprocessed.json()["progress"], reprocessed.json()["status"]) == (
        202,
        0,
        "pending",
    )
    assert reprocessed.json()["error"] is None
    deleted = api.delete(f"{ITEM}/{done}")
    assert (deleted.status_code, deleted.json()["deleting"], deleted.json()["progress"]) == (202, True, None)
    assert api.get(f"{ITEM}/{done}").json()["deleting"] is True
    assert api.delete(f"{ITEM}/{done}").status_code == 202
    problem(api.post(f"{ITEM}/{done}/reprocess"), 404, "unknown_item")
    assert api.post(f"{ITEM}/{failed}/cancel").json() == {"status": "cancelled"}
    assert api.post(f"{ITEM}/{failed}/cancel").json() == {"status": "ignored"}
    assert api.get(f"{ITEM}/{failed}").json()["error"] == "Cancelled"


def test_waiting_ends_with_the_item(api: TestClient, context: Context, base: str) -> None:
    failed = add_item(context, base, ItemStatus.FAILED, progress=10)
    assert api.get(f"{ITEM}/{failed}", params={"wait": 30}).json()["status"] == "failed"
    waited = api.post(f"{BASES}/{base}/items", params={"wait": 0.2}, json={"type": "note", "content": "hello"})
    assert (waited.status_code, waited.json()["created"][0]["status"]) == (202, "pending")
    waited = api.post(f"{ITEM}/{failed}/reprocess", params={"wait": 0.2})
    assert (waited.status_code, waited.json()["status"]) == (202, "pending")


def test_the_queue_lists_orphans_which_are_recovered_or_dismissed(api: TestClient, context: Context, base: str) -> None:
    stuck = add_item(context, base, ItemStatus.PREPROCESSING, admitted_at=context.db.now())
    line = add_item(context, base, position=2)
    in_line = api.get(f"{ITEM}/{line}", params={"includeStanding": "true"}).json()["standing"]
    assert (in_line["activity"], in_line["place"]) == ("stalled", 1)
    assert api.get(f"{BASES}/{base}/queue").json() == {
        "baseId": base,
        "queueSize": 1,
        "processingCount": 1,
        "activeItemIds": [],
        "orphanItemIds": [stuck, line],
    }
    assert api.get("/knowledge-queue").json() == {"queueSize": 1, "processingCount": 1, "perBaseQueue": {base: 1}}
    assert api.post(f"{BASES}/{base}/queue/dismiss", json={"itemIds": [stuck]}).json() == {"dismissed": [stuck]}
    assert api.get(f"{ITEM}/{stuck}").json()["error"] == "Interrupted"
    assert api.get(f"{BASES}/{base}/queue").json()["activeItemIds"] == [line], "the recovered item is first in line"
    stuck = add_item(context, base, admitted_at=context.db.now())
    assert api.post("/knowledge-queue/recover").json() == {"recovered": [stuck]}
    assert api.post(f"{BASES}/{base}/queue/recover").json() == {"recovered": []}
    assert api.post(f"{BASES}/{base}/queue/dismiss").json() == {"dismissed": []}
    problem(api.post(f"{BASES}/0123/queue/recover"), 404, "unknown_base")


def test_many_items_are_acted_on_at_once(api: TestClient, context: Context, base: str) -> None:
    failed = [add_item(context, base, ItemStatus.FAILED, position=number) for number in range(3)]
    at = f"{BASES}/{base}/items/actions"
    everything = {"filter": {"status": ["failed"]}, "all_matching": True}
    done = api.post(f"{at}/reprocess", json=everything).json()
    assert (done["matched"], done["done"], done["skipped"]) == (3, 3, [])
    assert api.post(f"{at}/reprocess", json=everything).json()["matched"] == 0
    named = api.post(f"{at}/cancel", json={"ids": [failed[0], failed[0], "0123"]}).json()
    assert (named["matched"], named["done"], [skipped["id"] for skipped in named["skipped"]]) == (2, 1, ["0123"])
    assert api.post(f"{at}/delete", json={"all_matching": True}).json()["done"] == 3
    problem(api.post(f"{at}/delete", json={}), 422, "invalid")


def test_search_and_chunks_of_bases_without_text_are_empty(api: TestClient, context: Context, base: str) -> None:
    item = add_item(context, base, ItemStatus.COMPLETED, progress=100)
    assert api.get(f"{ITEM}/{item}/chunks").json() == {"items": [], "next_cursor": None}
    query = {"query": "filter", "types": ["note"], "since": "2026-01-01T00:00:00Z"}
    assert api.post(f"{BASES}/{base}/search", json=query).json()["hits"] == []
    for where in ({}, {"baseIds": [base]}):
        assert api.post("/knowledge-search", json={**query, **where}).json()["hits"] == []
    problem(api.post(f"{BASES}/0123/search", json=query), 404, "unknown_base")
    problem(api.post(f"{BASES}/{base}/search", json={"query": "x", "baseIds": []}), 422, "invalid")
    problem(api.post(f"{BASES}/{base}/search", json={"query": " "}), 422, "empty_query")


@pytest.mark.both_databases
def test_items_are_filtered_by_words_of_their_names(api: TestClient, context: Context, base: str) -> None:
    pump = add_item(context, base, ItemStatus.FAILED, name="Pump.pdf")
    add_item(context, base, ItemStatus.FAILED, name="valve.pdf", title="100 % of it")
    titled = add_item(context, base, name="a.pdf", title="PUMPS")
    items = f"{BASES}/{base}/items"

    def matches(**which: str) -> list[str]:
        return [item["id"] for item in api.get(items, params=which).json()["items"]]

    assert sorted(matches(q="pump")) == sorted([pump, titled])
    assert matches(q="pump", status="failed") == [pump]
    assert len(matches(q="%")) == 1
    assert matches(q="_") == []
    chosen = {"filter": {"q": "pump", "status": ["failed"]}, "all_matching": True}
    assert api.post(f"{items}/actions/delete", json=chosen).json()["matched"] == 1


def test_text_chunks_and_file_of_an_item_are_shown(api: TestClient, context: Context) -> None:
    base = add_base(context, "short chunks", chunk_tokens=32, chunk_overlap=16)
    note = "# Pumps\n\n" + " ".join(f"Filter {number} is changed." for number in range(60))
    added = api.post(f"{BASES}/{base}/items", json={"type": "note", "content": note, "name": "pumps.md"})
    item = added.json()["created"][0]["id"]
    Driver(context).work_off()
    chunks = api.get(f"{ITEM}/{item}/chunks").json()["items"]
    assert len(chunks) > 5
    assert all(0 < chunk["tokens"] <= 32 for chunk in chunks)
    whole = api.get(f"{ITEM}/{item}/text").json()
    assert (whole["text"], whole["start"], whole["total"]) == (note, 0, len(note)), "nothing twice"
    part = api.get(f"{ITEM}/{item}/text", params={"start": 100, "limit": 50}).json()
    assert (part["text"], part["end"]) == (note[100:150], 150)
    assert api.get(f"{ITEM}/{item}/text", params={"start": 10**6}).json()["text"] == ""
    file = api.get(f"{ITEM}/{item}/file")
    assert (file.text, file.headers["content-type"]) == (note, "application/octet-stream")
    assert file.headers["content-disposition"] == 'attachment; filename="pumps.md"'
    fetched = add_item(context, base, type="url", url="https://example.com", name="https://example.com")
    problem(api.get(f"{ITEM}/{fetched}/file"), 409, "no_result")
    for path in ("text", "file"):
        problem(api.get(f"{ITEM}/0123/{path}"), 404, "unknown_item")


def test_pages_of_kept_files_are_shown_as_pictures(api: TestClient, base: str, tmp_path: Path) -> None:
    file = samples.text_pdf(tmp_path / "two.pdf", [["one"], ["two"]]).read_bytes()
    added = api.post(f"{BASES}/{base}/items", files=[("files", ("two.pdf", file))])
    item = added.json()["created"][0]["id"]
    picture = api.get(f"{ITEM}/{item}/pages/2/picture", params={"width": 200})
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/webp"), picture.text
    assert picture.content[8:12] == b"WEBP"
    known = {"if-none-match": picture.headers["etag"]}
    assert api.get(f"{ITEM}/{item}/pages/2/picture", params={"width": 200}, headers=known).status_code == 304
    assert api.get(f"{ITEM}/{item}/pages/9/picture").status_code in {404, 422}
    note = api.post(f"{BASES}/{base}/items", json={"type": "note", "content": "under the mat"}).json()["created"][0]
    problem(api.get(f"{ITEM}/{note['id']}/pages/1/picture"), 404, "no_picture")
