"""One document: keys move through its pages, and blocks mark each other."""

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.browser.test_journeys import Open
from tests.support.cli import new_pdf


def test_keys_go_through_the_pages_and_back_returns(site: Site, open_page: Open, tmp_path: Path) -> None:
    document = site.convert(new_pdf(tmp_path / "keys.pdf", pages=5))["id"]
    page = open_page().go(f"/console/documents/{document}")
    page.evaluate("window.stayed = true")
    for number in (2, 3):
        page.keyboard.press("j")
        expect(page.locator("#text")).to_have_attribute("data-page", str(number))
    expect(page.locator("#reading")).to_contain_text("This is page 3")
    page.keyboard.press("k")
    expect(page.locator("#text")).to_have_attribute("data-page", "2")
    expect(page.locator(".strip .here")).to_have_id("cell-2")
    page.go_back()
    expect(page.locator("#text")).to_have_attribute("data-page", "3")
    for _ in range(4):
        page.keyboard.press("j")
    expect(page.locator("#text")).to_have_attribute("data-page", "5")
    assert page.evaluate("window.stayed")
    assert page.locator(".stream").count() == 1


def test_a_block_and_its_text_mark_each_other(site: Site, open_page: Open, tmp_path: Path) -> None:
    document = site.convert(new_pdf(tmp_path / "marks.pdf", pages=1))["id"]
    page = open_page().go(f"/console/documents/{document}")
    on = re.compile(r"\bon\b")
    section, box = page.locator(".text section[data-block]").first, page.locator(".paper a[data-block]").first
    section.click()
    expect(box).to_have_class(on)
    page.keyboard.press("Escape")
    expect(box).not_to_have_class(on)
    box.focus()
    page.keyboard.press("Enter")
    expect(section).to_have_class(on)
    expect(section).to_be_focused()
