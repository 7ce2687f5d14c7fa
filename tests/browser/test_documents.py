"""The list of documents: upload of a folder, live rows, announcements of new documents, and bulk actions."""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.support.browser import Visit
from tests.support.cli import new_pdf

Open = Callable[..., Visit]
SOON = 60_000


def test_a_folder_is_sent_and_each_file_shows_its_outcome(open_page: Open, tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    (folder / "below").mkdir(parents=True)
    new_pdf(folder / "good.pdf")
    new_pdf(folder / "below" / "other.pdf")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    (folder / "notes.txt").write_text("a note")
    (folder / ".hidden.pdf").write_bytes(b"x")
    visit = open_page()
    visit.refusals_expected = True
    page = visit.go("/console/documents")
    page.set_input_files("#folder", folder)
    board = page.locator("#uploads")
    expect(board.locator("li", has_text="broken.pdf")).to_contain_text("is damaged or not a PDF", timeout=SOON)
    expect(page.locator("#uploads-words")).to_have_text("2 files sent, 1 not accepted", timeout=SOON)
    expect(page.locator("#uploads-passed")).to_contain_text("desk/notes.txt")
    expect(board).not_to_contain_text(".hidden")
    for name in ("good.pdf", "other.pdf"):
        expect(page.locator(".documents tr", has_text=name)).to_contain_text("completed", timeout=SOON)
    page.locator("#uploads-close").click()
    expect(board).to_be_hidden()


def test_new_documents_are_announced_without_moving_rows(open_page: Open, site: Site, tmp_path: Path) -> None:
    page = open_page().go("/console/documents")
    expect(page.locator("#live")).to_have_text("live")
    first = page.locator(".documents tbody tr").first
    place, name = first.bounding_box(), first.locator(".name a").inner_text()
    site.convert(new_pdf(tmp_path / "announced.pdf"), wait=0)
    expect(page.locator("#fresh")).to_contain_text("1 new document", timeout=SOON)
    assert first.bounding_box() == place
    assert first.locator(".name a").inner_text() == name
    page.locator("#fresh a").click()
    expect(page.locator(".documents tr", has_text="announced.pdf")).to_be_visible()
    expect(page.locator("#fresh a")).to_have_count(0)


def test_keys_move_through_rows_and_select_and_delete_them(open_page: Open, site: Site, tmp_path: Path) -> None:
    for name in ("first-of-two.pdf", "second-of-two.pdf"):
        site.convert(new_pdf(tmp_path / name), name)
    page = open_page().go("/console/documents?q=of-two")
    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("#selected-count")).to_have_text("2 selected:")
    page.locator("#selected").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Delete 2 documents?")
    page.get_by_role("button", name="Delete 2 documents").click()
    expect(page.locator("#said")).to_contain_text("2 documents are deleted.")
    expect(page.locator(".documents tr", has_text="of-two")).to_have_count(0)


def test_all_matching_documents_can_be_paused_and_resumed(open_page: Open, site: Site, tmp_path: Path) -> None:
    site.call("POST", "/queues/vision.ai/pause", {"reason": "later"})
    try:
        for number in range(2):
            site.convert(new_pdf(tmp_path / f"held-{number}.pdf"), wait=0, provider="ai")
        page = open_page().go("/console/documents?q=held-")
        rows = page.locator(".documents tbody tr")
        expect(rows.first).to_contain_text("later", timeout=SOON)
        for words, state in (("Pause", "paused"), ("Resume", "later")):
            page.goto(page.url)
            page.locator("summary", has_text="2 that match").click()
            page.get_by_role("link", name=re.compile(f"^{words}…")).click()
            page.get_by_role("button", name=f"{words} 2 documents").click()
            expect(page).to_have_url(re.compile("q=held-"))
            for row in (rows.first, rows.last):
                expect(row).to_contain_text(state, timeout=SOON)
    finally:
        site.call("POST", "/queues/vision.ai/resume")
