"""Keys, live settings, webhooks and the log of events in the browser."""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.support.browser import Visit
from tests.support.cli import new_pdf

Open = Callable[..., Visit]
SOON = 30_000


def test_a_key_is_created_shown_once_and_revoked(open_page: Open) -> None:
    page = open_page().go("/console/settings/keys")
    page.fill("[name=name]", "<b>desk</b>")
    page.get_by_role("button", name="Create a key").click()
    expect(page.locator("#secret")).to_have_text(re.compile(r"^pstk_"))
    secret = page.locator("#secret").inner_text()
    page.get_by_text("I have stored it").click()
    row = page.locator("tr", has_text="<b>desk</b>").first
    expect(row).to_contain_text("usable")
    assert secret not in page.content()
    row.get_by_role("button", name="Revoke").click()
    expect(page.locator("#ask-words")).to_contain_text("“<b>desk</b>”")
    page.locator("#ask-yes").click()
    expect(row).to_contain_text("revoked", timeout=SOON)


def test_a_setting_is_refused_changed_and_reset_in_place(open_page: Open) -> None:
    visit = open_page()
    visit.refusals_expected = True
    page = visit.go("/console/settings?q=requests_per_min")
    setting = page.locator("#setting-api-requests_per_min")
    setting.locator("summary").click()
    setting.locator("[name=value]").fill("many")
    setting.get_by_role("button", name="Save").click()
    expect(page.locator("#said .bad")).to_contain_text("api.requests_per_min")
    setting.locator("[name=value]").fill("100000")
    setting.locator("[name=reason]").fill("a busy day")
    setting.get_by_role("button", name="Save").click()
    expect(setting).to_contain_text("“a busy day”", timeout=SOON)
    if setting.locator("details[open]").count() == 0:
        setting.locator("summary").click()
    expect(setting.locator("[name=reason]")).to_have_value("")
    setting.get_by_role("button", name="Reset to").click()
    expect(setting).to_contain_text("default", timeout=SOON)


def test_the_log_updates_itself_and_pauses_for_a_reader(open_page: Open, site: Site, tmp_path: Path) -> None:
    page = open_page().go("/console/events?type=document.completed")
    stops, rows = page.locator("#flow-stops"), page.locator("#event-list tr[id]")
    expect(page.locator("#live")).to_have_text("live")
    site.convert(new_pdf(tmp_path / "logged.pdf"))
    expect(rows.first).to_contain_text("logged.pdf", timeout=SOON)
    rows.first.locator("summary").click()
    expect(stops).to_have_text("Continue")
    site.convert(new_pdf(tmp_path / "meanwhile.pdf"))
    expect(rows.first).to_contain_text("logged.pdf")
    stops.click()
    expect(rows.first).to_contain_text("meanwhile.pdf", timeout=SOON)
    expect(page.locator("#event-list details[open]")).to_have_count(0)


def test_an_endpoint_is_added_and_deleted(open_page: Open) -> None:
    page = open_page().go("/console/events/webhooks/new")
    page.fill("[name=url]", "https://desk.example.com/hook")
    page.check("[value='document.*']")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#secret")).to_have_text(re.compile(r"^whsec_"))
    page.get_by_text("I have stored it").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#ask-words")).to_contain_text("cannot be undone")
    page.locator("#ask-yes").click()
    expect(page.locator("#said")).to_contain_text("is deleted", timeout=SOON)
