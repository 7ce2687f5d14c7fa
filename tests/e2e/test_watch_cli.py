"""`penstock watch`: it converts the files of an inbox, also after a kill."""

import signal
from pathlib import Path

from tests.support.cli import Cli, Running, new_pdf
from tests.support.provider_server import ProviderServer

WATCH = ("watch", "in", "-o", "out")


def end(watching: Running) -> str:
    watching.interrupt()
    assert watching.wait() == 0, watching.output
    return watching.output.splitlines()[-1]


def test_new_and_changed_files_are_converted(cli: Cli) -> None:
    inbox, results = cli.cwd / "in", cli.cwd / "out"
    (inbox / "moved").mkdir(parents=True)
    new_pdf(inbox / "there.pdf")
    (inbox / "notes.doc").write_text("of another type")
    watching = cli.start(*WATCH)
    watching.wait_for("Left out 1 file of other types: in/notes.doc.")
    watching.wait_for("in/there.pdf → out/there.md (1 page)")
    (inbox / "later.doc").write_text("of another type, later")
    watching.wait_for("Left out 1 file of other types: in/later.doc.")
    new_pdf(cli.cwd / "new.pdf").rename(inbox / "new.pdf")
    (inbox / "bad.pdf").write_text("no PDF")
    (cli.cwd / "folder").mkdir()
    new_pdf(cli.cwd / "folder" / "deep.pdf")
    (cli.cwd / "folder").rename(inbox / "folder")
    watching.wait_for("in/new.pdf → out/new.md")
    watching.wait_for("in/bad.pdf: REFUSED: bad.pdf is not of a supported type")
    watching.wait_for("in/folder/deep.pdf → out/folder/deep.md")
    (results / "new.md").write_text("mine")
    new_pdf(inbox / "there.pdf", pages=2)
    new_pdf(inbox / "new.pdf", pages=2)
    watching.wait_for("in/there.pdf → out/there.md (2 pages)")
    watching.wait_for("in/new.pdf: KEPT: out/new.md was edited, and is kept, but it is older than its source")
    assert end(watching) == "4 written, 1 kept, 1 refused."
    assert watching.output.count("in/notes.doc") == 1, "each file is named once"
    assert (results / "new.md").read_text() == "mine"
    assert "This is page 2" in (results / "there.md").read_text()


def test_a_killed_inbox_continues_and_pays_for_no_page_twice(cli: Cli, provider: ProviderServer) -> None:
    inbox = cli.cwd / "in"
    inbox.mkdir()
    new_pdf(inbox / "done.pdf")
    watching = cli.start(*WATCH, "--provider", "ai")
    watching.wait_for("in/done.pdf → out/done.md")
    provider.configure({"latency_s": 1})
    new_pdf(inbox / "half.pdf", pages=3)
    assert provider.wait_for_calls(2, timeout_s=90)
    watching.process.send_signal(signal.SIGKILL)
    watching.wait()
    new_pdf(inbox / "missed.pdf")
    restarted = cli.start(*WATCH, "--provider", "ai")
    restarted.wait_for("in/half.pdf → out/half.md (3 pages)")
    restarted.wait_for("in/missed.pdf → out/missed.md")
    assert end(restarted) == "2 written, 1 up to date."
    assert len(provider.records) == 5
    assert {path.name for path in Path(cli.cwd, "out").glob("*.md")} == {"done.md", "half.md", "missed.md"}
