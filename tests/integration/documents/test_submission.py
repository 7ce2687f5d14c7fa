import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from pipeline.engine.claims import Owner
from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, queries, service
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.recovery import remove_orphans
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.submission import Options, submit
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import merge, split
from pipeline.reading.files.inputs import manifest_path
from pipeline.reading.files.user_file import write_text
from pipeline.reading.pdf import pdfium
from pipeline.storage import installation
from pipeline.storage.context import Context
from pipeline.storage.database import Database
from tests.support.commits import lose_answers
from tests.support.corpus import corpus_file, field_file
from tests.support.documents import (
    at_once,
    document,
    held,
    insert_document,
    mentions,
    page_states,
    set_row,
    write_output,
)
from tests.support.samples import ENCRYPTED_FOLDER, PASSWORD, encrypted_pdf, picture_of, text_pdf

D, P = DocumentStatus, PageStatus
THREE = [["one"], ["two"], ["three"]]


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__OPENAI__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__OPENAI__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__OPENAI__API_KEY": "sk-1",
        "PENSTOCK_PROVIDERS__BARE__BASE_URL": "http://127.0.0.1:9/v1",
    }


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    return text_pdf(tmp_path / "report.pdf", THREE)


def refused(context: Context, path: Path, options: Options | None = None) -> UserError:
    """Submit, return the message of the error, and check that no file or row is left."""
    error = refused_again(context, path, options)
    assert_nothing_stored(context)
    return error


def refused_again(context: Context, path: Path, options: Options | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        submit(context, path, options or Options())
    return caught.value


def assert_nothing_stored(context: Context) -> None:
    assert stored(context) == []
    with context.db.read() as session:
        assert session.execute(select(func.count()).select_from(DOCUMENTS)).scalar() == 0


def stored(context: Context) -> list[str]:
    folder = context.settings.upload_dir
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def test_a_submitted_file_is_stored_and_waits_to_be_split(context: Context, pdf: Path) -> None:
    view = submit(context, pdf.parent / ".." / pdf.parent.name / pdf.name, Options(allow_partial=True))
    assert view.source_path == str(pdf.resolve())
    assert (view.status, view.progress, view.pages, view.at_rest) == (D.PENDING, 0, 0, False)
    assert (view.filename, view.type, view.provider, view.model_name) == ("report.pdf", "pdf", "local", "local")
    assert (view.size_bytes, view.allow_partial) == (pdf.stat().st_size, True)
    assert stored(context) == [view.id, f"{view.id}/source.pdf"]
    assert files.source_path(context.settings, view.id, "pdf").read_bytes() == pdf.read_bytes()
    assert queries.document(context, view.id) == view


def test_the_original_may_change_or_disappear_afterwards(context: Context, pdf: Path) -> None:
    before = pdf.read_bytes()
    view = submit(context, pdf, Options())
    pdf.write_bytes(b"something else")
    pdf.unlink()
    assert files.source_path(context.settings, view.id, "pdf").read_bytes() == before


def test_the_same_content_and_options_give_the_same_document(context: Context, pdf: Path, tmp_path: Path) -> None:
    first = submit(context, pdf, Options())
    copy = shutil.copy(pdf, tmp_path / "other name.pdf")
    for path, pages in ((pdf, ""), (Path(copy), "1-3"), (pdf, "3,2,1"), (pdf, "1-2, 2-")):
        assert submit(context, path, Options(page_range=pages)) == first
    assert stored(context) == [first.id, f"{first.id}/source.pdf"]


def test_other_pages_provider_model_or_content_give_another_document(context: Context, pdf: Path) -> None:
    ids = {
        submit(context, pdf, options).id
        for options in (
            Options(),
            Options(page_range="1-2"),
            Options(provider="openai"),
            Options(provider="openai", model="m-2"),
        )
    }
    text_pdf(pdf, [*THREE, ["four"]])
    ids.add(submit(context, pdf, Options()).id)
    assert len(ids) == 5


def test_a_page_range_is_kept_in_its_shortest_form(context: Context, pdf: Path) -> None:
    ranges = {"3,1": "1,3", "1-2": "1-2", "2-": "2-3", "1-3": "", "": "", "2": "2"}
    page_ranges = {text: submit(context, pdf, Options(page_range=text, fresh=True)).page_range for text in ranges}
    assert page_ranges == ranges


def test_fresh_gives_a_new_document_every_time(context: Context, pdf: Path) -> None:
    ids = {submit(context, pdf, Options(fresh=fresh)).id for fresh in (False, True, True)}
    assert len(ids) == 3
    assert submit(context, pdf, Options()).id in ids


@pytest.mark.both_databases
def test_one_file_submitted_many_times_at_once_gives_one_document(context: Context, pdf: Path) -> None:
    views = at_once(8, lambda _: submit(context, pdf, Options()))
    assert len({view.id for view in views}) == 1
    assert stored(context) == [views[0].id, f"{views[0].id}/source.pdf"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (Options(provider="nowhere"), "unknown_provider"),
        (Options(provider="bare"), "no_model"),
        (Options(model="m"), "unknown_model"),
        (Options(provider="openai", model="m" * 121), "unknown_model"),
        (Options(provider="openai", model="m\x00"), "unknown_model"),
        (Options(page_range="4"), "page_range"),
        (Options(page_range="0"), "page_range"),
        (Options(page_range="1-x"), "page_range"),
        (Options(page_range="3-1"), "page_range"),
    ],
)
def test_an_invalid_option_is_refused_and_leaves_nothing(
    context: Context, pdf: Path, options: Options, code: str
) -> None:
    assert refused(context, pdf, options).code == code


def _corrupt(path: Path) -> None:
    path.write_bytes(b"%PDF-1.4\nthis is no PDF")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, "missing"),
        (Path.mkdir, "directory"),
        (Path.touch, "empty"),
        (lambda path: path.write_text("just text"), "unsupported"),
        (os.mkfifo, "unsupported"),
        (_corrupt, "corrupt"),
        (encrypted_pdf, "encrypted"),
    ],
)
def test_a_bad_file_is_refused_and_leaves_nothing(
    context: Context, tmp_path: Path, make: Callable[[Path], object], code: str
) -> None:
    path = tmp_path / "bad.pdf"
    make(path)
    assert refused(context, path).code == code


@pytest.mark.parametrize("name", ["aes-256", "rc4-128"])
def test_an_encrypted_pdf_is_stored_without_its_password(context: Context, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copy(ENCRYPTED_FOLDER / f"{name}.pdf", tmp_path / "ledger.pdf"))
    assert "give it as `password`" in str(refused(context, path))
    assert refused(context, path, Options(password="Kaffeekanne-4711")).code == "wrong_password"
    options = Options(password=PASSWORD)
    view = submit(context, path, options)
    assert stored(context) == [view.id, f"{view.id}/source.pdf"]
    with pdfium.open_document(files.source_path(context.settings, view.id, "pdf")) as document:
        assert document.pages == 2
    assert submit(context, path, options) == view
    assert refused_again(context, path).code == "encrypted", "the same file without its password is not the document"
    assert not mentions(context, PASSWORD[-8:])
    assert PASSWORD not in repr(options)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        pytest.param("saslprep-r6.pdf", "S\u00aaSL\u00adprep", id="saslprep"),
        pytest.param("bug1782186.pdf", "Hello", id="strings-are-plain"),
    ],
)
def test_a_password_that_pdfium_refuses_opens_its_file(context: Context, name: str, password: str) -> None:
    assert refused(context, field_file(name), Options(password="Hullo")).code == "wrong_password"
    view = submit(context, field_file(name), Options(password=password))
    with pdfium.open_document(files.source_path(context.settings, view.id, "pdf")) as document:
        assert document.pages == 1


def test_a_password_is_no_fault_of_files_that_need_none(context: Context, pdf: Path, tmp_path: Path) -> None:
    protected = corpus_file("documents/copy-protected.pdf")
    assert submit(context, protected, Options(password="x")).size_bytes == protected.stat().st_size
    assert submit(context, pdf, Options(password="x")) == submit(context, pdf, Options())
    picture_of(["x"]).save(tmp_path / "a.png")
    assert submit(context, tmp_path / "a.png", Options(password="x")).type == "png"


NAMES = {
    "an annual report.pdf": "an annual report",
    "报告 2026 – Überblick.pdf": "报告 2026 – Überblick",
    "..\\..\\evil.pdf": "evil",
    "....pdf": "file",
    "-rf $HOME;`x`.pdf": "-rf $HOME;`x`",
    "two\nlines\t.pdf": "two lines",
    "no suffix": "no suffix",
    ".md.md.pdf": "md.md",
    "x" * 251 + ".pdf": None,
    "字" * 83 + ".pdf": None,
}


@pytest.mark.parametrize("name", list(NAMES))
def test_any_file_name_is_accepted_and_stays_inside_the_folders(context: Context, pdf: Path, name: str) -> None:
    named = pdf.rename(pdf.with_name(name))
    view = submit(context, named, Options())
    output = files.output_path(context.settings, view.id, view.filename)
    assert stored(context) == [view.id, f"{view.id}/source.pdf"]
    assert output.resolve().parent == context.settings.output_dir / view.id
    assert (output.stem == NAMES[name]) if NAMES[name] else (150 < len(output.stem.encode()) <= 200)
    write_text(output, "text")
    write_text(manifest_path(output), "{}")


def test_a_path_that_climbs_gives_a_plain_name(context: Context, pdf: Path) -> None:
    (pdf.parent / "below").mkdir()
    view = submit(context, pdf.parent / "below" / ".." / "report.pdf", Options())
    assert view.filename == "report.pdf"


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_a_copy(source: Path, target: Path, _: int) -> None:
    Path(target).write_bytes(Path(source).read_bytes()[:100])
    no_space()


@pytest.mark.parametrize("act", ["pipeline.flows.documents.files._copy", "pathlib.Path.replace", "pathlib.Path.mkdir"])
def test_a_full_disk_while_storing_leaves_no_file_and_gives_advice(
    context: Context, pdf: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    assert_nothing_stored(context)  # which also opens the database, while there is space
    with monkeypatch.context() as patched:
        patched.setattr(act, half_a_copy if "copy" in act else no_space)
        error = refused(context, pdf)
    assert error.code == "disk_full"
    assert "no space left on the disk" in str(error)
    assert submit(context, pdf, Options()).status is D.PENDING


def test_a_database_that_fails_leaves_no_file(context: Context, pdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.flows.documents.submission.insert_if_absent", no_space)
        with pytest.raises((OSError, UserError)):
            submit(context, pdf, Options())
    assert_nothing_stored(context)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_is_lost_stores_one_document_with_its_file(
    context: Context, pdf: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    installation.check(context.db, context.settings)  # the next commit stores the document
    with monkeypatch.context() as patched:
        lose_answers(patched, context.db, committed=committed)
        view = submit(context, pdf, Options())
    assert stored(context) == [view.id, f"{view.id}/source.pdf"]
    assert (view.status, submit(context, pdf, Options()).id) == (D.PENDING, view.id)


def test_a_database_that_stays_away_after_its_commit_keeps_the_file_of_its_row(
    context: Context, pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.check(context.db, context.settings)
    with monkeypatch.context() as patched:
        patched.setattr(Database.run, "__kwdefaults__", {"patience_s": 0.0})
        lose_answers(patched, context.db, times=1000)
        patched.setattr("pipeline.flows.documents.submission.PATIENCE_S", 0.0)
        with pytest.raises(OperationalError):
            submit(context, pdf, Options())
    view = submit(context, pdf, Options())
    assert stored(context) == [view.id, f"{view.id}/source.pdf"]


def test_a_repeated_submission_restores_a_missing_file_and_resumes_the_document(context: Context, pdf: Path) -> None:
    view = submit(context, pdf, Options())
    source = files.source_path(context.settings, view.id, "pdf")
    files.remove_all(context.settings, view.id)
    assert split.split_document(context, view.id, Owner("w", "r:0")) is False
    assert document(context, view.id).status == D.FAILED, "there is nothing to split"
    resumed = submit(context, pdf, Options())
    assert (resumed.id, resumed.status) == (view.id, D.PENDING)
    assert source.read_bytes() == pdf.read_bytes()
    assert split.split_document(context, view.id, Owner("w", "r:1"))
    assert stored(context)[:2] == [view.id, f"{view.id}/source.pdf"]


def ready_to_merge(context: Context) -> str:
    return insert_document(context, D.READY_TO_MERGE, [P.COMPLETED] * 2)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_full_disk_while_merging_costs_time_and_no_file(
    context: Context, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    context.settings.documents.backoff_s = [0.0]
    document_id = ready_to_merge(context)
    output = Path(write_output(context, document_id, "merged before\n"))
    calls = []

    def fsync(_: int) -> None:
        calls.append(1)
        if len(calls) == fails_at:
            no_space()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        assert not merge.merge_document(context, document_id, Owner("w", "r:0"))
    row = document(context, document_id)
    assert D(row.status) is D.READY_TO_MERGE
    assert "no space left on the disk" in row.error
    assert [path.name for path in output.parent.iterdir()] == ["report.md"], "no partial and no temporary file"
    assert output.read_text() == "merged before\n"
    assert merge.merge_document(context, document_id, Owner("w", "r:0"))
    assert D(document(context, document_id).status) is D.COMPLETED
    assert output.read_text().startswith("<!-- Page 1 -->\n\ntext of page 1\n\n---\n\n<!-- Page 2 -->")
    assert sorted(path.name for path in output.parent.iterdir()) == ["report.manifest.json", "report.md"]


def test_a_disk_that_stays_full_fails_the_split_after_its_attempts_and_says_why(
    context: Context, pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.settings.documents.backoff_s = [0.0]
    view = submit(context, pdf, Options())
    monkeypatch.setattr("pipeline.flows.documents.work.split.write_text", lambda *_: no_space())
    seen = []
    for attempt in range(2):
        split.split_document(context, view.id, Owner("w", f"r:{attempt}"))
        seen.append(D(document(context, view.id).status))
    assert seen == [D.PENDING, D.FAILED]
    told = document(context, view.id).error
    assert "no space left on the disk" in told
    assert str(context.settings.data_dir) not in told


def test_a_merger_that_was_overtaken_leaves_no_file(context: Context) -> None:
    document_id = insert_document(context, D.MERGING, [P.COMPLETED])
    claimed = document(context, document_id)
    service.cancel(context, document_id)
    with pytest.raises(stage.ClaimLost):
        merge.write_result(context, claimed)
    assert list(files.output_folder(context.settings, document_id).iterdir()) == []
    assert D(document(context, document_id).status) is D.CANCELLED


def submitted_as(context: Context, pdf: Path, status: DocumentStatus, pages: list[PageStatus], **values: Any) -> str:
    """A document in `status` that another submission of `pdf` finds."""
    key = document(context, (view := submit(context, pdf, Options())).id).submission_key
    service.remove(context, view.id)
    return insert_document(context, status, pages, submission_key=key, **values)


@pytest.mark.parametrize(
    ("status", "pages", "expected", "expected_pages"),
    [
        (D.FAILED, [], D.PENDING, []),
        (D.CANCELLED, [], D.PENDING, []),
        (D.FAILED, [P.COMPLETED], D.READY_TO_MERGE, [P.COMPLETED]),
        (D.CANCELLED, [P.COMPLETED], D.READY_TO_MERGE, [P.COMPLETED]),
        (D.CANCELLED, [P.COMPLETED, P.PENDING], D.PROCESSING, [P.COMPLETED, P.PENDING]),
        (D.CANCELLED, [P.FAILED, P.RETRYING], D.PROCESSING, [P.RETRYING, P.RETRYING]),
        (D.PARTIAL_FAILED, [P.COMPLETED, P.FAILED], D.PROCESSING, [P.COMPLETED, P.RETRYING]),
        (D.COMPLETED, [P.COMPLETED], D.READY_TO_MERGE, [P.COMPLETED]),
        (D.PENDING, [], D.PENDING, []),
        (D.SPLITTING, [], D.SPLITTING, []),
        (D.PROCESSING, [P.FAILED, P.PENDING], D.PROCESSING, [P.FAILED, P.PENDING]),
        (D.READY_TO_MERGE, [P.COMPLETED], D.READY_TO_MERGE, [P.COMPLETED]),
        (D.MERGING, [P.COMPLETED], D.MERGING, [P.COMPLETED]),
        (D.PAUSED, [P.PENDING], D.PAUSED, [P.PENDING]),
    ],
)
def test_a_repeated_submission_does_the_least_work_for_the_result(
    context: Context,
    pdf: Path,
    status: DocumentStatus,
    pages: list[PageStatus],
    expected: DocumentStatus,
    expected_pages: list[PageStatus],
) -> None:
    document_id = submitted_as(context, pdf, status, pages)
    view = submit(context, pdf, Options(allow_partial=True))
    assert (view.id, view.status) == (document_id, expected)
    assert page_states(context, document_id) == expected_pages
    assert view.allow_partial, "the options of this submission, not the earlier ones"


def test_a_completed_document_with_its_file_is_reused(context: Context, pdf: Path) -> None:
    document_id = submitted_as(context, pdf, D.COMPLETED, [P.COMPLETED])
    set_row(context, document_id, merged_path=write_output(context, document_id))
    before = document(context, document_id)
    assert submit(context, pdf, Options()).status is D.COMPLETED
    assert document(context, document_id) == before


def test_reviving_resets_attempts_error_and_end(context: Context, pdf: Path) -> None:
    document_id = submitted_as(context, pdf, D.FAILED, [], **{**held(), "claim_id": None}, error="it failed")
    view = submit(context, pdf, Options())
    assert (view.error, view.finished_at, document(context, document_id).attempts) == (None, None, 0)


def test_only_old_orphans_are_removed(context: Context, tmp_path: Path) -> None:
    settings = context.settings
    installation.check(context.db, settings)
    running, done = insert_document(context, D.PROCESSING), insert_document(context, D.COMPLETED, [P.COMPLETED])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    old = [settings.upload_dir / "unknown1", settings.output_dir / "unknown2", settings.temp_dir / "unknown3"]
    kept = [folder / name for folder in (settings.upload_dir, settings.output_dir) for name in (running, done)]
    kept += [settings.temp_dir / running, settings.upload_dir / "brand-new"]
    for folder in [*old, *kept, settings.temp_dir / done]:
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (settings.upload_dir / "incoming-0123").touch()
    (settings.upload_dir / "link").symlink_to(outside)
    for folder in (settings.upload_dir, settings.output_dir, settings.temp_dir, tmp_path):
        for entry in folder.iterdir():
            if entry.name != "brand-new":
                os.utime(entry, (0, 0))
    assert remove_orphans(context) == len(old) + 3
    assert [folder.exists() for folder in old] == [False] * 3
    assert all((folder / "file").exists() for folder in kept)
    assert not (settings.temp_dir / done).exists()
    assert (outside / "precious").exists()
    assert remove_orphans(context) == 0
