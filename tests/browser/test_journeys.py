"""The main tasks of users, from start to end."""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Route, expect

from tests.browser.site import Site, screen_picture
from tests.support.browser import Visit
from tests.support.cli import new_pdf

Open = Callable[..., Visit]
SOON = 20_000


def test_a_file_is_dropped_converted_and_read_without_loading_a_page_again(
    open_page: Open, site: Site, tmp_path: Path
) -> None:
    page = open_page().go("/console/documents")
    page.evaluate("window.still_here = true")
    path = new_pdf(tmp_path / "minutes of the meeting.pdf", pages=3)
    page.set_input_files("#files", path)
    row = page.locator("tr", has_text="minutes of the meeting.pdf")
    expect(row).to_contain_text("completed", timeout=SOON)
    expect(row).to_contain_text("3 / 3")
    assert page.evaluate("window.still_here"), "the page did not reload"
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("minutes of the meeting.pdf")
    box = page.locator("#paper a[data-block]").first
    block = box.get_attribute("data-block")
    box.click()
    expect(page.locator(f"section[data-block='{block}']")).to_have_class(re.compile(r"\bon\b"))
    last = page.locator("section[data-block]").last
    last.click()
    expect(page.locator(f"#paper a[data-block='{last.get_attribute('data-block')}']")).to_have_class(
        re.compile(r"\bon\b")
    )
    page.keyboard.press("j")
    expect(page.locator("#text")).to_have_attribute("data-page", "2")
    page.keyboard.press("k")
    expect(page.locator("#text")).to_have_attribute("data-page", "1")


def test_a_page_is_retried_with_another_provider_and_its_attempts_are_compared(open_page: Open, site: Site) -> None:
    document = site.ids["documents"][1]
    page = open_page().go(f"/console/documents/{document}?page=1")
    page.keyboard.press("r")
    form = page.locator("details[open] form.again")
    choice = form.get_by_role("combobox").first
    labels = choice.locator("option").all_inner_texts()
    choice.select_option(label=next(label for label in labels if "ai" in label))
    form.get_by_role("button").click()
    expect(page.locator("#said")).to_contain_text("again")
    expect(page.locator("#text")).to_contain_text("Minutes of the pump house", timeout=SOON)
    refreshes: list[Route] = []
    page.route(re.compile(r"\?page=1$"), lambda route: refreshes.append(route))  # noqa: PLW0108  # its parameters count
    page.evaluate("document.body.dispatchEvent(new CustomEvent('changed'))")
    page.get_by_role("link", name="Attempts 2").click()
    used = page.get_by_role("button", name=re.compile("Use this text", re.IGNORECASE)).first
    expect(used).to_be_visible()
    assert refreshes, "no refresh was under way"
    for refresh in refreshes:
        refresh.continue_()
    for _ in range(3):  # The refresh precedes these requests.
        page.evaluate("fetch(location.href).then((answer) => answer.text())")
    expect(used).to_be_visible()


def test_a_paused_queue_is_shown_on_its_page_and_on_the_waiting_document(
    open_page: Open, site: Site, tmp_path: Path
) -> None:
    site.call("POST", "/queues/vision.ai/pause", {"reason": "invoice run first"})
    try:
        waits = site.convert(new_pdf(tmp_path / "waits.pdf"), wait=0, provider="ai")
        queues, document = open_page().go("/console/queues"), open_page().go(f"/console/documents/{waits['id']}")
        expect(document.locator("main")).to_contain_text("invoice run first", timeout=SOON)
        row = queues.locator("tr", has_text="vision.ai").first
        expect(row).to_contain_text("invoice run first")
        row.get_by_role("button", name="Resume").click()
        expect(queues.locator("tr", has_text="vision.ai").first).to_contain_text("flowing", timeout=SOON)
        expect(document.locator("main")).to_contain_text("completed", timeout=SOON)
    finally:
        site.call("POST", "/queues/vision.ai/resume")


def test_a_screenshot_is_found_and_its_words_are_boxed(open_page: Open, site: Site) -> None:
    page = open_page().go("/console/screenshots")
    page.locator("main input[type=search]").first.fill("turbine")
    page.keyboard.press("Enter")
    expect(page.locator("main svg rect, main svg a").first).to_be_attached(timeout=SOON)
    page.locator("main a[href*='/console/screenshots/']", has=page.locator("img, svg, image")).first.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.go_back()
    expect(page.locator("main input[type=search]").first).to_have_value("turbine")


def test_a_new_screenshot_appears_without_a_reload(open_page: Open, site: Site) -> None:
    page = open_page().go("/console/screenshots")
    before = int(page.locator("#shots-status b").first.inner_text())
    site.call(
        "POST",
        "/screenshots?wait=30&title=Sluice",
        raw=screen_picture(["Sluice", "open"]),
        **{"Content-Type": "image/png"},
    )
    expect(page.locator("#shots-status b").first).to_have_text(str(before + 1), timeout=SOON)


def test_keys_open_their_targets(open_page: Open) -> None:
    page = open_page().go("/console/documents")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    page.goto(page.url)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
