"""Every screen there is, found by following links: nothing hostile runs, nobody is left out, and each fits. First of
this folder: others delete what links still lead to."""

import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from tests.browser.site import Site
from tests.support.browser import Visit, picture

MAIN = ("", "documents", "screenshots", "music", "knowledge", "queues", "workers", "calls", "events", "settings")
_ID = re.compile(r"/(?:[0-9a-f]{8,}|[0-9]+|ep_[0-9a-f]+|[a-z-]+_[a-z_]+|[a-z]+\.[a-z0-9._-]+)(?=/|$)")
"""What names one of many: the others look alike."""
HARM = """() => [...document.querySelectorAll('*')].flatMap(e => [...e.attributes]
    .filter(a => /^on/.test(a.name) || (/^(href|src|action|formaction|data|xlink:href)$/.test(a.name)
        && /^[\\s\\u0000-\\u0020]*(javascript|vbscript|data:text)/i.test(a.value)))
    .map(a => `<${e.localName} ${a.name}="${a.value}">`)
    .concat(['base', 'iframe', 'object', 'embed', 'style'].includes(e.localName) ? [`<${e.localName}>`] : []))
    .concat(window.hurts ?? [])"""
"""What stands in a page that strangers wrote and that would do something, and what they did."""
EACH = 1
"""How many of those that look alike are looked at."""


def kind_of(path: str) -> str:
    """What kind of screen this is: without ids, and of the query only which parameters there are."""
    parts = urlsplit(path)
    return _ID.sub("/*", parts.path) + "".join(
        sorted(f"?{one.partition('=')[0]}" for one in parts.query.split("&") if one)
    )


def links(page: Page, base: str) -> list[str]:
    """Where this page leads within the console."""
    found = page.eval_on_selector_all("a[href]", "all => all.filter(one => !one.closest('svg')).map(one => one.href)")
    inside = [href.removeprefix(base).partition("#")[0] for href in found if href.startswith(f"{base}/console")]
    return [path for path in inside if not path.endswith(("/archive", "/file")) and "/static/" not in path]


@pytest.fixture(scope="package")
def screens(browser: Any, site: Site) -> list[str]:
    """An address of each kind of screen, found from the main ones."""
    context = browser.new_context()
    page = context.new_page()
    seen: dict[str, list[str]] = {}
    waiting = deque(f"/console/{name}" for name in MAIN)
    while waiting:
        path = waiting.popleft()
        alike = seen.setdefault(kind_of(path), [])
        if path in alike or len(alike) >= EACH or len(seen) > 120:
            continue
        alike.append(path)
        answer = page.goto(f"{site.base}{path}", wait_until="domcontentloaded")
        if answer and "text/html" in answer.headers.get("content-type", ""):
            assert answer.status < 400, f"{path}: {answer.status}"
            waiting.extend(links(page, site.base))
        else:
            alike.remove(path)
    context.close()
    return [path for alike in seen.values() for path in alike]


def each_once(screens: list[str]) -> list[str]:
    """One address of each screen, whatever its query."""
    return list({_ID.sub("/*", urlsplit(path).path): path for path in reversed(screens)}.values())


def name_of(path: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", kind_of(path).removeprefix("/console").lower()).strip("-") or "overview"


def test_nothing_that_is_hostile_runs_on_any_screen(
    open_page: Callable[..., Visit], screens: list[str], pictures_folder: Path | None
) -> None:
    looked = open_page()
    found, kinds = [], set()
    for path in screens:
        page = looked.go(path)
        page.wait_for_timeout(50)
        found += [f"{path}: {one}" for one in page.evaluate(HARM)]
        assert page.locator("main h1").first.inner_text().strip(), f"{path} has a heading"
        if pictures_folder and name_of(path) not in kinds:
            for scheme in ("light", "dark"):
                picture(page, pictures_folder, name_of(path), scheme)
        kinds.add(name_of(path))
    assert not found, "\n".join(found)
    assert len(kinds) > 25, sorted(kinds)


def test_a_screen_reader_finds_its_way_on_every_screen(open_page: Callable[..., Visit], screens: list[str]) -> None:
    looked = open_page()
    found: list[str] = []
    for path in each_once(screens):
        looked.go(path)
        found += looked.serious()
    assert not found, "\n".join(found)


def test_every_screen_fits_a_telephone_and_a_wall(open_page: Callable[..., Visit], screens: list[str]) -> None:
    looked = open_page()
    found = []
    for path in each_once(screens):
        looked.go(path)
        found += [f"{path} at {width}: {over} px" for width in (360, 2560) if (over := looked.too_wide(width)) > 0]
    assert not found, "\n".join(found)


def test_every_screen_can_be_read_without_javascript(open_page: Callable[..., Visit], screens: list[str]) -> None:
    looked = open_page(java_script_enabled=False)
    for path in each_once(screens):
        page = looked.go(path)
        assert page.locator("main h1").first.inner_text().strip(), path
        assert len(page.locator("main").inner_text()) > 40, path
