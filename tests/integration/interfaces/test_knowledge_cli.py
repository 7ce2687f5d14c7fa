"""`penstock kb …` without workers: its output, its refusals and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.flows.knowledge import queries
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tasks import knowledge
from tests.support.knowledge import add_base, add_item


def penstock(*arguments: str | Path, code: int = 0, stdin: str = "") -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, ["kb", *map(str, arguments)], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def shown(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(penstock(*arguments, "--json", code=code).stdout)


@pytest.fixture
def base(context: Context) -> str:
    return add_base(context, "manuals")


def test_base_is_created_listed_edited_and_deleted_by_its_name(context: Context) -> None:
    created = shown("create", "manuals", "--description", "pumps", "--chunk-tokens", "256")
    assert shown("list") == [{**created, "items": {}}]
    edited = shown("edit", "manuals", "--name", "handbooks", "--chunk-overlap", "0")
    assert (edited["name"], edited["chunk_tokens"], edited["chunk_overlap"]) == ("handbooks", 256, 0)
    assert "256 tokens at most" in penstock("show", "handbooks").output
    assert shown("show", created["id"])["queue"]["queue_size"] == 0
    penstock("delete", "handbooks", stdin="n\n", code=1)
    penstock("delete", "handbooks", "--yes")
    assert "being deleted" in penstock("list").output
    assert isinstance(CliRunner().invoke(app, ["kb", "show", "handbooks"]).exception, knowledge.UnknownBase)


def test_wrong_usage_of_kb_is_explained(base: str, tmp_path: Path) -> None:
    for arguments in (
        ("edit", base),
        ("add", base, ""),
        ("add", base, str(tmp_path), "--sitemap"),
        ("reprocess",),
        ("reprocess", "1", "--failed", base),
        ("items", base, "--status", "done"),
        ("items", base, "--type", "pdf"),
    ):
        assert "Error" in penstock(*arguments, code=2).output
    for wrong in (["add", base], ["add", base, "--note", "a", "--note", "b", "--name", "c"]):
        assert CliRunner().invoke(app, ["kb", *wrong]).exception.code == "usage"  # type: ignore[union-attr]


def test_add_takes_files_addresses_and_notes_and_explains_failures(base: str, tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("# One")
    (tmp_path / "link.md").symlink_to(tmp_path / "one.md")
    done = penstock(
        "add",
        "manuals",
        tmp_path / "one.md",
        tmp_path / "no.md",
        "https://example.com/a#b",
        "ftp://example.com",
        "--note",
        "-",
        "--note",
        " ",
        stdin="Out of the pipe",
        code=3,
    )
    assert f"{tmp_path}/no.md: not added: No such file" in done.output
    assert "not an address that begins with http" in done.output
    assert "the note is empty" in done.output
    assert "3 items added, 3 not added." in done.output
    listed = shown("items", base)
    assert [(item["type"], item["name"]) for item in listed] == [
        ("file", "one.md"),
        ("url", "https://example.com/a"),
        ("note", "Out of the pipe.md"),
    ]
    repeated = shown("add", base, tmp_path / "one.md")
    assert [item["item_id"] for item in repeated["there"]] == [listed[0]["id"]]
    assert not repeated["failed"]
    penstock("add", base, tmp_path / "no.md", code=1)
    linked = shown("add", base, tmp_path / "link.md", "--name", "other.md")
    assert [item["item_id"] for item in linked["there"]] == [listed[0]["id"]], "the same file by another name"
    (tmp_path / "one.md").write_text("# One, changed")
    assert [item["id"] for item in shown("add", base, tmp_path / "one.md")["changed"]] == [listed[0]["id"]]
    (tmp_path / "two.md").write_text("# Two")
    assert shown("add", base, tmp_path / "two.md", "--name", "other.md")["created"][0]["name"] == "other.md"
    sitemap = shown("add", base, "https://example.com/sitemap.xml", "--sitemap")["created"][0]
    assert (sitemap["type"], sitemap["url"]) == ("sitemap", "https://example.com/sitemap.xml")
    assert [item["name"] for item in shown("items", base, "--type", "note", "--type", "url", "--limit", "1")] == [
        "https://example.com/a"
    ]


def test_adding_a_folder_again_reports_new_changed_and_missing_files(base: str, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "deeper").mkdir(parents=True)
    for name in ("a.md", "b.md", "c.md", "deeper/e.md"):
        (folder / name).write_text(name)
    assert "4 items added." in penstock("add", base, folder).output
    group = shown("items", base)[0]["group_id"]
    (folder / "a.md").write_text("changed")
    (folder / "b.md").unlink()
    (folder / "d.md").write_text("new")
    report = shown("add", base, folder)
    assert [item["name"] for item in report["created"]] == ["d.md"]
    assert [item["name"] for item in report["changed"]] == ["a.md"]
    assert (len(report["gone"]), report["unchanged"]) == (1, 2)
    assert len(shown("items", base, "--group", group)) == 4
    text = penstock("items", base).output
    assert "deleting" in text
    assert str(folder) in text
    assert str(folder / "deeper") in text
    (folder / ".hidden").touch()
    assert "4 unchanged, 1 hidden: left out." in penstock("add", base, folder, "--keep-gone").output


def test_a_folder_that_is_suddenly_empty_deletes_nothing_until_confirmed(
    context: Context, base: str, tmp_path: Path
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    files = [folder / f"{number}.md" for number in range(20)]
    for file in files:
        file.write_text(file.name)
    penstock("add", base, folder)
    for file in files:
        file.unlink()
    refused = CliRunner().invoke(app, ["kb", "add", base, str(folder)])
    assert refused.exit_code == 1
    assert "nothing deleted: 20 of 20 files are missing" in refused.output
    assert "--yes" in refused.output
    assert not any(item.deleting for item in queries.items(context, base))
    assert "20 missing: being deleted" in penstock("add", base, folder, "--yes").output


def test_an_item_is_shown_cancelled_reprocessed_and_removed(context: Context, base: str) -> None:
    first, second = (add_item(context, base, position=number) for number in (1, 2))
    failed = add_item(context, base, ItemStatus.FAILED, position=3, error="It is [bold]broken[/bold].\x1b[31m")
    now = penstock("item", second).output
    assert "stalled" in now
    assert "number 2 of its base" in now
    assert shown("item", first, "--chunks")["standing"]["place"] == 1
    assert "It is [bold]broken[/bold].\\x1b[31m" in penstock("item", failed).output
    done = penstock("cancel", first, failed, "nothing", code=3).output
    assert (f"{first}: cancelled" in done, f"{failed}: had already ended" in done) == (True, True)
    assert "there is no knowledge item nothing" in done
    penstock("cancel", "nothing", code=1)
    assert "2 items will be read again" in penstock("reprocess", "--failed", "manuals").output
    assert "Nothing to do" in penstock("reprocess", "--stale", base).output
    penstock("reprocess", second)
    penstock("remove", first, second, "--yes")
    assert {item["id"]: item["deleting"] for item in shown("items", base)} == {first: True, second: True, failed: False}
    wanted = [item["id"] for item in shown("items", base, "--status", "PENDING") if not item["deleting"]]
    assert wanted == [failed]


def test_the_queue_shows_orphans_which_can_be_recovered_or_dismissed(context: Context, base: str) -> None:
    stuck = add_item(context, base, ItemStatus.PREPROCESSING, admitted_at=context.db.now())
    add_item(context, base, position=2)
    assert shown("status")["per_base_queue"] == {base: 1}
    assert "manuals" in penstock("status").output
    queue = shown("queue", base)
    assert (queue["queue_size"], queue["processing_count"], len(queue["orphan_item_ids"])) == (1, 1, 2)
    assert queue["standings"][stuck]["activity"] == "stalled"
    assert "kb recover" in penstock("queue", base).output
    assert len(shown("recover", base)) == 2
    assert "1 orphan given up" in penstock("dismiss", base, stuck).output
    assert shown("item", stuck)["error"] == "Interrupted"
    # The other item has started, and its message is on its way.
    assert "No orphans" in penstock("dismiss", base).output


def test_wait_without_open_items_reports_the_outcome(context: Context, base: str) -> None:
    assert "0 items of 0 can be searched" in penstock("wait", base).output
    add_item(context, base, ItemStatus.FAILED, progress=30)
    assert "1 item failed" in penstock("wait", base, code=1).output
    add_item(context, base, ItemStatus.COMPLETED, progress=100)
    assert shown("wait", base, code=3) == {"states": {"completed": 1, "failed": 1}, "progress": 100}


def test_check_reports_leftovers(context: Context, base: str) -> None:
    assert "Complete: nothing is left over or missing" in penstock("check").output
    add_item(context, base, ItemStatus.COMPLETED, admitted_at=context.db.now())
    assert shown("check", code=1)["admitted_at_rest"] == 1


def test_a_note_of_any_bytes_is_taken(base: str) -> None:
    result = CliRunner().invoke(app, ["kb", "add", base, "--note", "-"], input=b"half a note \xff\x00\xed\xa0\xbd")
    assert (result.exit_code, "1 item added" in result.output) == (0, True), result.output
    (item,) = knowledge.items(base)
    assert item.name.startswith("half a note \N{REPLACEMENT CHARACTER}")
