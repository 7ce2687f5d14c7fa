"""A data folder belongs to one database. With another database, no command runs and no file is removed."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from pipeline.engine.errors import UserError
from pipeline.flows.documents.recovery import remove_orphans
from pipeline.flows.documents.submission import Options, submit
from pipeline.flows.screenshots.frames import files as frames
from pipeline.interfaces.cli.main import app
from pipeline.operations import retention
from pipeline.process import new_context
from pipeline.settings import Settings
from pipeline.storage import installation
from pipeline.storage.context import Context
from pipeline.storage.installation import ForeignFolder
from tasks import maintenance, presence
from tests.support.samples import text_pdf

pytestmark = pytest.mark.both_databases

Another = Callable[[], Context]
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests that do not depend on the kind of database."""


@pytest.fixture
def used(context: Context) -> Context:
    """A context with old files: an upload and a result of a document in its database, and a screenshot."""
    pdf = text_pdf(context.settings.data_dir / "report.pdf", [["one page"]])
    document = submit(context, pdf, Options())
    (context.settings.output_dir / document.id).mkdir(parents=True)
    context.settings.screenshot_dir.mkdir()
    (context.settings.screenshot_dir / "shot.png").touch()
    for folder in ("upload_dir", "output_dir", "screenshot_dir"):
        for entry in getattr(context.settings, folder).iterdir():
            os.utime(entry, (0, 0))
    return context


@pytest.fixture
def another(migrated_sqlite: Path, tmp_path: Path, data_dir: Path) -> Iterator[Another]:
    """Return a function that creates contexts with empty databases and the same data folder."""
    contexts: list[Context] = []

    def make() -> Context:
        path = tmp_path / f"other{len(contexts)}.db"
        shutil.copyfile(migrated_sqlite, path)
        contexts.append(new_context(Settings(data_dir=data_dir, database_url=f"sqlite:///{path}")))
        return contexts[-1]

    yield make
    for context in contexts:
        context.db.dispose()


def stored(settings: Settings) -> set[str]:
    folders = (settings.upload_dir, settings.output_dir, settings.screenshot_dir)
    return {str(entry.relative_to(settings.data_dir)) for folder in folders for entry in folder.rglob("*")}


def test_with_an_empty_database_no_file_is_an_orphan(used: Context, another: Another) -> None:
    before = stored(used.settings)
    assert len(before) == 4
    with capture_logs() as logs:
        assert remove_orphans(another()) == 0
        assert frames.remove_orphans(another()) == 0
    assert stored(used.settings) == before
    assert {line["event"] for line in logs} == {"clean_up.refused"}
    assert "the database is new, but the data folder" in logs[0]["reason"]


@on_sqlite
def test_with_another_installation_s_database_no_file_is_an_orphan(
    used: Context, another: Another, tmp_path: Path
) -> None:
    foreign = another()
    elsewhere = Settings(data_dir=tmp_path / "elsewhere", database_url=foreign.settings.database_url)
    installation.check(foreign.db, elsewhere)
    before = stored(used.settings)
    with capture_logs() as logs:
        assert remove_orphans(foreign) == frames.remove_orphans(foreign) == 0
    assert stored(used.settings) == before
    assert "the database belongs to installation" in logs[0]["reason"]


@on_sqlite
def test_without_the_mark_no_file_of_an_older_folder_is_an_orphan(used: Context, another: Another) -> None:
    before = stored(used.settings)
    installation.mark(used.settings).unlink()
    with capture_logs() as logs:
        assert remove_orphans(used) == remove_orphans(another()) == 0
    assert stored(used.settings) == before
    assert "does not carry the mark" in logs[0]["reason"]
    assert "is new, but the data folder" in logs[1]["reason"]
    assert "holds files" in logs[1]["reason"]


@on_sqlite
def test_an_unmounted_disk_is_noticed_and_not_marked(used: Context) -> None:
    for entry in used.settings.data_dir.iterdir():
        if entry.name not in {"penstock.db", "report.pdf"} and not entry.name.startswith("penstock.db-"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with pytest.raises(ForeignFolder, match="check that its disk is mounted"):
        submit(used, used.settings.data_dir / "report.pdf", Options())
    assert not installation.mark(used.settings).exists()
    assert not used.settings.upload_dir.exists()


@on_sqlite
def test_clean_up_removes_nothing_from_another_installation(used: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_run(*_: object) -> int:
        raise AssertionError("it cleaned up")

    monkeypatch.setattr(retention, "prune", must_not_run)
    monkeypatch.setattr(maintenance, "flows", must_not_run)
    installation.mark(used.settings).write_text("another\n")
    with capture_logs():
        assert maintenance.clean_up() == 0


@on_sqlite
def test_commands_and_workers_refuse_another_installation_until_it_is_adopted(used: Context) -> None:
    installation.mark(used.settings).write_text("f00d" * 8)
    with capture_logs():
        refused = CliRunner().invoke(app, ["documents", "list"])
        assert isinstance(refused.exception, UserError)
        sentence = str(refused.exception)
        assert "the database belongs to installation" in sentence
        assert "to installation f00df00d" in sentence
        assert "`penstock migrate --adopt`" in sentence
        with pytest.raises(SystemExit, match="penstock: the database belongs to installation"):
            presence._begin(SimpleNamespace(hostname="worker@here"))
        assert isinstance(CliRunner().invoke(app, ["migrate"]).exception, UserError)
        doctor = CliRunner().invoke(app, ["doctor"])
        assert doctor.exit_code == 1
        assert "FAIL  installation" in doctor.stdout
        assert "penstock migrate --adopt" in doctor.stdout
        assert CliRunner().invoke(app, ["migrate", "--adopt"]).exit_code == 0
        assert CliRunner().invoke(app, ["documents", "list"]).exit_code == 0
    assert remove_orphans(used) == 0


def test_a_new_folder_and_a_new_database_are_paired_once(context: Context, another: Another) -> None:
    pair = installation.read_pair(context.db, context.settings)
    assert (pair.new, pair.problem, pair.database, pair.folder) == (True, "", None, None)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: installation.check(context.db, context.settings), range(12)))
    pair = installation.read_pair(context.db, context.settings)
    assert (pair.fits, pair.bound) == (True, True)
    with pytest.raises(ForeignFolder):
        installation.check(another().db, context.settings)


@on_sqlite
def test_a_new_database_can_be_adopted(used: Context, another: Another) -> None:
    new = another()
    installation.adopt(new.db, new.settings)
    installation.check(new.db, new.settings)
    with pytest.raises(ForeignFolder):
        installation.check(used.db, used.settings)
