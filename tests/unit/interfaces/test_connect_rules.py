"""Decisions of `penstock connect paperless` about one document."""

import pytest

from pipeline.interfaces.cli.connect.client import PaperlessDocument, Version
from pipeline.interfaces.cli.connect.record import Record
from pipeline.interfaces.cli.connect.rules import MAX_TITLE, Tags, Verdict, changes, judge, shortened

TAGS = Tags(waiting=1, done=2, failed=3)


def document(
    *, tags: tuple[int, ...] = (1, 9), title: str = "scan", content: str = "old", **more: object
) -> PaperlessDocument:
    fields = {"original_checksum": "md5"} | more
    return PaperlessDocument(7, title, list(tags), content=content, **fields)  # type: ignore[arg-type]


RECORD = Record.of(document())


def test_a_result_replaces_text_title_and_tag_in_one_request() -> None:
    assert changes(RECORD, document(), TAGS, "new", "Invoice") == {"tags": [9, 2], "content": "new", "title": "Invoice"}
    assert changes(RECORD, document(), TAGS, None, None) == {"tags": [9, 2]}


def test_a_tag_that_a_user_added_in_the_meantime_stays() -> None:
    assert changes(RECORD, document(tags=(1, 9, 12)), TAGS, None, None) == {"tags": [9, 12, 2]}


def test_a_title_that_a_user_edited_in_the_meantime_stays() -> None:
    assert "title" not in changes(RECORD, document(title="mine"), TAGS, None, "Invoice")


def test_success_and_failure_replace_each_others_tags() -> None:
    assert TAGS.after([1, 3]) == [2]
    assert TAGS.after([1, 2], failed=True) == [3]
    assert Tags(1, None, 3).after([1, 9]) == [9]


@pytest.mark.parametrize(
    ("current", "verdict"),
    [
        (document(), Verdict.WRITE),
        (None, Verdict.DROP),
        (document(tags=(9,)), Verdict.DROP),
        (document(original_checksum="another"), Verdict.RETAKE),
        (document(content="edited"), Verdict.EDITED),
        (document(content=" old\n"), Verdict.WRITE),
        (document(content="new"), Verdict.WRITE),
    ],
    ids=["unchanged", "gone", "untagged", "another file", "edited", "blanks", "written by us before a kill"],
)
def test_a_result_is_written_only_over_what_was_taken(current: PaperlessDocument | None, verdict: Verdict) -> None:
    assert judge(RECORD, current, TAGS.waiting, "new") is verdict


def test_an_edited_text_does_not_matter_if_none_is_written() -> None:
    assert judge(RECORD, document(content="edited"), TAGS.waiting, None) is Verdict.WRITE


def test_the_source_is_the_newest_version_that_is_not_ours() -> None:
    versions = [Version(12, "c", "Penstock"), Version(7, "a"), Version(11, "b", "by hand"), Version(13, "d")]
    assert document(versions=versions).source("d").checksum == "b"
    assert document(versions=versions).source().checksum == "d"
    assert document(versions=[Version(7)]).source().checksum == "version 7"


@pytest.mark.parametrize(
    ("heading", "title"),
    [
        ("  Invoice\n 12 ", "Invoice 12"),
        ("x" * 128, "x" * 128),
        ("x" * 129, "x" * 127 + "…"),
        ("word " * 40, "word " * 24 + "word…"),
        ("", ""),
    ],
)
def test_titles_fit_into_paperless(heading: str, title: str) -> None:
    assert shortened(heading) == title
    assert len(title) <= MAX_TITLE
