"""If the API requires a key, a browser logs in with it and keeps a session."""

import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.site import reachable
from tests.support.browser import Visit
from tests.support.cli import Cli, environment
from tests.support.leftovers import short_folder
from tests.support.redis_server import free_port


@pytest.fixture
def locked() -> Iterator[tuple[str, str]]:
    """Return (address of an API that requires keys, a key)."""
    folder, port = short_folder(), free_port()
    settings = {"PENSTOCK_API__REQUIRE_KEY": "true", "PENSTOCK_API__PORT": str(port)}
    cli = Cli(folder, folder, environment(folder, **settings))
    key = cli.run("keys", "create", "desk", "--scope", "read", "--json").json()["secret"]
    running = cli.start("api")
    base = f"http://127.0.0.1:{port}"
    try:
        reachable(base)
        yield base, key
        running.interrupt()
        running.wait()
    finally:
        cli.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_key_opens_the_console_and_the_browser_keeps_no_key(
    locked: tuple[str, str], open_page: Callable[..., Visit]
) -> None:
    base, key = locked
    visit = open_page(base)
    visit.refusals_expected = True
    page = visit.go("/console/documents?q=pump")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.get_by_role("textbox", name="Key").fill("pstk_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid key")
    page.get_by_role("textbox", name="Key").fill(key)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Documents")
    assert page.url.endswith("/console/documents?q=pump")
    cookies = page.context.cookies()
    assert [(cookie["name"], cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies] == [
        ("penstock_session", True, "Lax")
    ]
    assert key not in str(cookies)
    assert page.get_by_role("button", name="Choose files").count() == 0, "a key of the scope read adds nothing"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.goto(f"{base}/console/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
