"""Adding sources: invalid ones are refused one by one, with the reason, and the others go in line."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.errors import UserError
from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import directory, files, intake, queries, service
from pipeline.flows.knowledge.intake import Source
from pipeline.flows.knowledge.models import ITEMS
from pipeline.flows.knowledge.states import ItemStatus, ItemType
from pipeline.storage.context import Context
from tests.support.commits import lose_answers
from tests.support.knowledge import add_base, add_item
from tests.support.knowledge_driver import Driver


def codes(added: intake.Added) -> list[str]:
    return [failure.code for failure in added.failed]


def urls(*addresses: str) -> list[Source]:
    return [Source(ItemType.URL, url=address) for address in addresses]


def as_files(*paths: Path) -> list[Source]:
    return [Source(ItemType.FILE, path) for path in paths]


def test_a_hundred_and_twenty_files_are_added_in_order_and_bad_files_are_reported(
    context: Context, base: str, tmp_path: Path
) -> None:
    paths = []
    for number in range(120):
        path = tmp_path / f"file {number:03}.md"
        path.write_text("" if number % 20 == 7 else f"text {number}")
        paths.append(path)
    paths[33].unlink()
    paths[34].chmod(0)
    paths[35].unlink()
    paths[35].symlink_to(paths[36])
    paths[37].unlink()
    paths[37].mkdir()
    added = intake.add(context, base, as_files(*paths))
    refused = {failure.path: failure.code for failure in added.failed}
    expected = {f"file {number:03}.md": "empty" for number in range(7, 120, 20)}
    unreadable = {} if os.geteuid() == 0 else {paths[34].name: "io_error"}
    expected |= {paths[33].name: "io_error", **unreadable, paths[35].name: "io_error"}
    assert {name: code for name, code in refused.items() if name != paths[37].name} == expected
    assert paths[37].name in refused
    names = [item.name for item in added.created]
    assert names == sorted(names)
    assert len(names) == 120 - len(refused)
    assert [item.id for item in queries.items(context, base)] == [item.id for item in added.created]
    assert len(list(files.root(context.settings).iterdir())) == len(names), "refused sources leave no file"


def test_same_source_is_recognised_in_one_batch_and_in_a_later_one(context: Context, base: str) -> None:
    first = intake.add(context, base, urls("https://a.example/x#one", "https://a.example/x#two", "https://a.example/y"))
    assert len(first.created) == 2
    assert codes(first) == ["duplicate"]
    assert first.failed[0].item_id == first.created[0].id
    repeated = intake.add(context, base, urls("https://a.example/y"))
    assert (codes(repeated), repeated.failed[0].item_id) == (["duplicate"], first.created[1].id)
    assert len(intake.add(context, add_base(context, "other"), urls("https://a.example/y")).created) == 1
    assert not service.delete_items(context, "unknown")
    service.delete_items(context, first.created[1].id)
    assert codes(intake.add(context, base, urls("https://a.example/y"))) == ["deleting"]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ftp://a.example",
        "file:///etc/passwd",
        "https://",
        "https://user:secret@a.example",
        "https://a.example:99999",
        "https://a.example/\x00",
        "https://a.example/ b",
        "javascript:alert(1)",
        "https://" + "a" * 2000,
        "https://[::1",
        "https://a.example/\ud800",
    ],
)
def test_address_that_cannot_be_fetched_is_refused_without_its_password(
    context: Context, base: str, address: str
) -> None:
    added = intake.add(context, base, urls(address))
    assert codes(added) == ["bad_url"]
    assert "secret" not in added.failed[0].error


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_empty_note_is_refused(context: Context, base: str, text: str) -> None:
    assert codes(intake.add(context, base, [Source(ItemType.NOTE, text=text)])) == ["empty"]


def test_characters_that_databases_and_files_refuse_are_replaced(context: Context, driver: Driver, base: str) -> None:
    (item_id,) = driver.note(base, "# NUL \x00 and \ud800 surrogate\n\nbody \x00 \udfff end")
    service.edit_base(context, base, description="NUL \x00 \ud800")
    driver.work_off()
    assert driver.status(item_id) is ItemStatus.COMPLETED, driver.row(item_id).error
    assert "\x00" not in "".join(driver.texts(item_id))
    assert add_base(context, "with description", description="\x00\udfff")


def test_base_is_changed_by_the_names_of_its_fields_only(context: Context, base: str) -> None:
    for hostile in ({"id": "other"}, {"deleting": True}, {"turn": 5}, {"next_position": 1}):
        with pytest.raises(UserError):
            service.edit_base(context, base, **hostile)
    for name in ("", " ", "x" * 256, "a\nb\x00"):
        with pytest.raises(UserError):
            service.edit_base(context, base, name=name)


class TestLimits:
    @pytest.fixture
    def extra_env(self) -> dict[str, str]:
        return {
            "PENSTOCK_KNOWLEDGE__MAX_QUEUE_SIZE": "3",
            "PENSTOCK_KNOWLEDGE__MAX_CHARS": "1000",
            "PENSTOCK_KNOWLEDGE__MAX_FILE_MB": "1",
            "PENSTOCK_KNOWLEDGE__WARN_FILE_MB": "0.5",
        }

    def test_full_queue_refuses_with_the_reason_and_accepts_items_after_room_frees_up(
        self, context: Context, driver: Driver, base: str
    ) -> None:
        added = intake.add(context, base, urls(*(f"https://a.example/{number}" for number in range(5))))
        assert (len(added.created), codes(added)) == (3, ["queue_full"] * 2)
        assert "max_queue_size" in added.failed[0].error
        service.delete_items(context, added.created[0].id)
        assert len(intake.add(context, base, urls("https://a.example/4")).created) == 1
        driver.work_off()

    def test_a_large_file_gets_a_warning_and_a_larger_one_is_refused(
        self, context: Context, base: str, tmp_path: Path
    ) -> None:
        (tmp_path / "large.txt").write_bytes(b"word " * 150_000)
        (tmp_path / "larger.txt").write_bytes(b"word " * 250_000)
        added = intake.add(context, base, as_files(tmp_path / "large.txt", tmp_path / "larger.txt"))
        assert [item.name for item in added.created] == ["large.txt"]
        assert len(added.warnings) == 1
        assert codes(added) == ["too_large"]
        assert codes(intake.add(context, base, [Source(ItemType.NOTE, text="x" * 1001)])) == ["too_large"]

    def test_workload_is_the_size_of_a_file_and_half_the_length_of_other_sources(
        self, context: Context, base: str, tmp_path: Path
    ) -> None:
        (tmp_path / "a.txt").write_bytes(b"x" * 37)
        sources = [*as_files(tmp_path / "a.txt"), *urls("https://a.example/"), Source(ItemType.NOTE, text="12345")]
        items = intake.add(context, base, sources).created
        assert [item.workload for item in items] == [37, len("https://a.example/") // 2, 3]


class TestDirectory:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "docs"
        (folder / "inner").mkdir(parents=True)
        for name in ("a.md", "b.md", "c.md", "inner/d.md", ".hidden"):
            (folder / name).write_text(f"text of {name}")
        (folder / "link.md").symlink_to(folder / "a.md")
        os.mkfifo(folder / "pipe")
        return folder

    def test_files_become_items_and_each_folder_a_group_of_them_without_links_and_hidden_files(
        self, context: Context, driver: Driver, base: str, folder: Path
    ) -> None:
        scanned = directory.scan(context, base, folder)
        assert [item.name for item in scanned.created] == ["a.md", "b.md", "c.md", "d.md"]
        assert {item.type for item in scanned.created} == {ItemType.DIRECTORY}
        *outer, inner = scanned.created
        assert {(item.group_id, item.group_name) for item in outer} == {(scanned.group_id, str(folder.resolve()))}
        assert inner.group_id != scanned.group_id
        assert inner.group_name == str(folder.resolve() / "inner")
        assert scanned.ignored == 1
        assert {failure.code for failure in scanned.failed} == {"link", "not_a_file"}
        driver.work_off()
        assert {item.status for item in queries.items(context, base)} == {ItemStatus.COMPLETED}

    def test_second_scan_reads_changed_files_and_deletes_items_of_missing_ones(
        self, context: Context, driver: Driver, base: str, folder: Path
    ) -> None:
        first = directory.scan(context, base, folder)
        a, b, c, d = (item.id for item in first.created)
        driver.work_off()
        driver.done.clear()
        (folder / "b.md").write_text("new text")
        (folder / "c.md").unlink()
        (folder / "inner" / "d.md").unlink()
        (folder / "inner").rmdir()
        (folder / "e.md").write_text("a new file")
        repeated = directory.scan(context, base, folder)
        assert repeated.group_id == first.group_id
        assert [item.name for item in repeated.created] == ["e.md"]
        assert [item.id for item in repeated.changed] == [b]
        assert (repeated.unchanged, repeated.gone) == (1, [c, d])
        driver.work_off()
        assert driver.done == [b, repeated.created[0].id]
        assert driver.texts(b) == ["new text"]
        assert driver.texts(a) == ["text of a.md"]
        assert (driver.row(c), driver.row(d)) == (None, None)
        assert checking.check(context).sound
        assert len(list(files.folder(context.settings, b).iterdir())) == 1, "the old copy is deleted"

    def test_an_emptied_folder_below_deletes_nothing_but_a_removed_one_does(
        self, context: Context, base: str, folder: Path
    ) -> None:
        disk = folder / "disk" / "deeper"
        disk.mkdir(parents=True)
        for number in range(4):
            (disk / f"{number}.md").write_text(f"{number}")
            (folder / f"other-{number}.md").write_text(f"other {number}")
        directory.scan(context, base, folder)
        shutil.rmtree(disk)
        repeated = directory.scan(context, base, folder)
        assert (repeated.gone, codes(repeated).count("mostly_missing")) == ([], 1)
        (folder / "disk").rmdir()
        assert len(directory.scan(context, base, folder).gone) == 4

    def test_items_of_missing_files_can_be_kept(self, context: Context, base: str, folder: Path) -> None:
        directory.scan(context, base, folder)
        (folder / "c.md").unlink()
        assert directory.scan(context, base, folder, keep_gone=True).gone == []

    def test_items_below_a_folder_that_cannot_be_listed_stay(
        self, context: Context, base: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory.scan(context, base, folder)
        (folder / "c.md").unlink()
        listed = os.scandir

        def scandir(path: Path) -> Any:
            if Path(path).name == "inner":
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return listed(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", scandir)
            repeated = directory.scan(context, base, folder)
        assert [failure.code for failure in repeated.failed if failure.path.endswith("/inner")] == ["io_error"]
        assert [queries.item(context, item_id).name for item_id in repeated.gone] == ["c.md"]

    def test_file_with_an_invalid_name_is_refused_and_others_are_added(
        self, context: Context, base: str, folder: Path
    ) -> None:
        Path(os.fsdecode(os.fsencode(folder) + b"/bad-\xff.md")).write_text("x")
        (folder / "two\nlines.md").write_text("y")
        scanned = directory.scan(context, base, folder)
        assert len(scanned.created) == 5
        (bad,) = [failure for failure in scanned.failed if failure.code == "bad_name"]
        assert bad.path.encode(), "the name is printable"
        repeated = directory.scan(context, base, folder)
        assert (repeated.created, repeated.unchanged, repeated.gone) == ([], 5, [])

    def test_a_file_added_alone_and_with_its_folder_is_one_item_in_either_order(
        self, context: Context, driver: Driver, base: str, folder: Path
    ) -> None:
        upload = intake.add(context, base, [Source(ItemType.FILE, folder / "b.md")]).created[0]
        alone = intake.add(context, base, [Source.of_file(folder / "inner" / "d.md")]).created[0]
        scanned = directory.scan(context, base, folder)
        assert [item.name for item in scanned.created] == ["a.md", "c.md"]
        assert [(failure.item_id, failure.code) for failure in scanned.failed if failure.code == "duplicate"] == [
            (upload.id, "duplicate")
        ]
        assert scanned.unchanged == 1, "the other file is known by its path"
        repeated = intake.add(context, base, [Source.of_file(folder / "a.md"), Source.of_file(folder / "b.md")])
        assert [failure.item_id for failure in repeated.failed] == [scanned.created[0].id, upload.id]
        assert [
            failure.group_name for failure in queries.items(context, base) if failure.id in {upload.id, alone.id}
        ] == [
            str(folder.resolve()),
            str(folder.resolve() / "inner"),
        ]
        driver.work_off()
        for name in ("a.md", "b.md"):
            (folder / name).write_text("other words")
        changed = intake.add(context, base, [Source.of_file(folder / "a.md")])
        assert ([failure.id for failure in changed.changed], changed.failed) == ([scanned.created[0].id], [])
        assert [failure.id for failure in directory.scan(context, base, folder).changed] == [upload.id]
        (folder / "b.md").unlink()
        assert directory.scan(context, base, folder).gone == [], "an item added alone stays"

    def test_equal_files_in_two_folders_stay_two(self, context: Context, base: str, folder: Path) -> None:
        for name in ("e.md", "inner/e.md"):
            (folder / name).write_text("the same")
        assert [item.name for item in directory.scan(context, base, folder).created].count("e.md") == 2
        assert directory.scan(context, base, folder).unchanged == 6

    def test_one_of_two_old_items_of_a_file_is_updated_and_both_are_known(
        self, context: Context, driver: Driver, base: str, folder: Path
    ) -> None:
        directory.scan(context, base, folder)
        (item, *_) = queries.items(context, base)
        values = {
            "type": ItemType.FILE,
            "source_key": "older",
            "origin": None,
            "content_sha256": driver.row(item.id).content_sha256,
        }
        twin = add_item(context, base, ItemStatus.COMPLETED, name=item.name, **values)
        assert codes(intake.add(context, base, [Source.of_file(folder / "a.md")])) == ["duplicate"]
        (folder / "a.md").write_text("new")
        assert [updated.id for updated in directory.scan(context, base, folder).changed] == [item.id]
        assert {item.id, twin} <= {updated.id for updated in queries.items(context, base)}

    def test_other_paths_than_directories_are_refused(self, context: Context, base: str, folder: Path) -> None:
        for path in (folder / "a.md", folder / "nowhere"):
            with pytest.raises(UserError):
                directory.scan(context, base, path)


def test_file_that_changes_while_it_is_copied_is_refused(
    context: Context, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "growing.txt"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(files, "_PIECE", 10)
    fstat = os.fstat
    seen: list[int] = []

    def growing(descriptor: int) -> os.stat_result:
        seen.append(descriptor)
        if len(seen) == 3:  # the checks on opening and at the start of the copying
            with path.open("ab") as file:
                file.write(b"y")
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", growing)
    added = intake.add(context, base, as_files(path))
    assert codes(added) == ["changed"]
    with context.db.read() as session:
        assert session.execute(ITEMS.select()).first() is None


def test_a_base_whose_commit_was_not_answered_is_created(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        lose_answers(patch, context.db)
        assert service.create_base(context, "one").name == "one"
    with pytest.raises(UserError, match="already"):
        service.create_base(context, "one")
