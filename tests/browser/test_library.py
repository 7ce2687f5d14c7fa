"""Music and knowledge in the browser."""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.support.browser import Visit

Open = Callable[..., Visit]

LONG_MS = 30_000


def test_files_are_added_to_a_base_found_and_opened_where_the_words_stand(open_page: Open, tmp_path: Path) -> None:
    manual = tmp_path / "manual.md"
    manual.write_text("\n\n".join(f"Chapter {n}: the filter of pump {n} is changed monthly." for n in range(200)))
    page = open_page().go("/console/knowledge/new")
    page.get_by_label("Name").fill("pump house")
    page.get_by_label("Most tokens in a chunk").fill("32")
    page.get_by_label("Tokens repeated in the next chunk").fill("0")
    page.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_url("**/add")
    page.locator("form[data-drop] input[type=file]").set_input_files(manual)
    page.get_by_role("button", name="Add files").click()
    page.wait_for_url(re.compile(r"/bases/[0-9a-f]+$"))
    page.evaluate("window.stayed = true")
    expect(page.locator("#kb-items .state.done")).to_be_visible(timeout=LONG_MS)
    assert page.evaluate("window.stayed"), "the page did not reload"
    page.get_by_role("main").get_by_role("link", name="Search", exact=True).click()
    page.get_by_role("searchbox", name="Search for").fill("pump 150")
    page.get_by_role("main").get_by_role("button", name="Search").click()
    hit = page.locator(".hit").first
    expect(hit.locator("mark").first).to_have_text(re.compile("pump|150"))
    results = page.url
    hit.get_by_role("link").first.click()
    chunk = page.locator(".chunk:target")
    expect(chunk).to_contain_text("pump 150")
    expect(chunk).to_be_in_viewport()
    page.go_back()
    expect(page.locator(".hit").first).to_contain_text("pump 150")
    assert page.url == results


def test_a_base_is_deleted_after_confirmation(open_page: Open, site: Site) -> None:
    base = site.call("POST", "/knowledge-bases", {"name": "to be deleted"})
    site.call("POST", f"/knowledge-bases/{base['id']}/items", {"type": "note", "content": "under the mat"})
    page = open_page().go(f"/console/knowledge/bases/{base['id']}/settings")
    page.get_by_role("button", name="Delete this base").click()
    expect(page.locator("#ask-words")).to_contain_text("to be deleted with its 1 item")
    page.locator("#ask").get_by_role("button", name="Cancel").click()
    assert site.call("GET", f"/knowledge-bases/{base['id']}")["name"] == "to be deleted"
    page.get_by_role("button", name="Delete this base").click()
    page.locator("#ask-yes").click()
    page.wait_for_url(re.compile(r"/knowledge$"))
    expect(page.locator("#said")).to_contain_text("is being deleted")


def test_a_run_shows_its_estimate_and_songs_are_found_by_words(open_page: Open) -> None:
    visit = open_page()
    page = visit.go("/console/music/start?failed=true&limit=5&mode=embedding&skip_sync=true")
    expect(page.get_by_role("heading", name="Estimate")).to_be_visible()
    page = visit.go("/console/music")
    expect(page.locator("#music-figures")).to_contain_text("in the library")
    page.get_by_role("link", name="Search by mood").click()
    page.get_by_role("searchbox", name="Words or a mood").fill("rain")
    page.get_by_role("main").get_by_role("button", name="Search").click()
    expect(page.locator("main")).to_contain_text(re.compile("best first|No hits"))
