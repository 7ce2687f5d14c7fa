"""Every screen that links lead to: no hostile content runs, screen readers work, and each screen fits. First of
this folder: other tests delete the targets of links."""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.site import Site
from tests.support.browser import Scheme, Visit, picture, watched

MAIN = ("", "documents", "screenshots", "music", "knowledge", "queues", "workers", "calls", "events", "settings")
_ID = re.compile(r"/(?:[0-9a-f]{8,}|[0-9]+|ep_[0-9a-f]+|[a-z-]+_[a-z_]+|[a-z]+\.[a-z0-9._-]+)(?=/|$)")
"""Parts of an address that name one of many similar pages."""
HARM = """() => [...document.querySelectorAll('*')].flatMap(e => [...e.attributes]
    .filter(a => /^on/.test(a.name) || (/^(href|src|action|formaction|data|xlink:href)$/.test(a.name)
        && /^[\\s\\u0000-\\u0020]*(javascript|vbscript|data:text)/i.test(a.value)))
    .map(a => `<${e.localName} ${a.name}="${a.value}">`)
    .concat(['base', 'iframe', 'object', 'embed', 'style'].includes(e.localName) ? [`<${e.localName}>`] : []))
    .concat(window.hurts ?? [])"""
"""Hostile elements and handlers that a page contains, and scripts that ran."""
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
EACH = 1
"""The most visits to similar pages."""


def kind_of(path: str) -> str:
    """Return the kind of a screen: its path without ids, and the names of its parameters."""
    parts = urlsplit(path)
    return _ID.sub("/*", parts.path) + "".join(
        sorted(f"?{parameter.partition('=')[0]}" for parameter in parts.query.split("&") if parameter)
    )


def links(page: Page, base: str) -> list[str]:
    """Return the console links of this page."""
    hrefs = page.eval_on_selector_all("a[href]", "all => all.filter(one => !one.closest('svg')).map(one => one.href)")
    inside = [href.removeprefix(base).partition("#")[0] for href in hrefs if href.startswith(f"{base}/console")]
    return [path for path in inside if not path.endswith(("/archive", "/file")) and "/static/" not in path]


@dataclass
class Tour:
    """A visit to each kind of screen. `wrong`: scripts that ran or could run, and screens without a heading."""

    screens: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@pytest.fixture(scope="package")
def tour(browser: Browser, site: Site) -> Tour:
    """Visit an address of each kind of screen, starting from the main ones."""
    tour_so_far = Tour()
    with watched(browser, site.base) as visit:
        _visit_all(visit, tour_so_far)
    tour_so_far.wrong += visit.wrong
    return tour_so_far


def _visit_all(visit: Visit, tour: Tour) -> None:
    seen: dict[str, list[str]] = {}
    waiting = deque(f"/console/{name}" for name in MAIN)
    while waiting:
        path = waiting.popleft()
        alike = seen.setdefault(kind_of(path), [])
        if path in alike or len(alike) >= EACH or len(seen) > 120:
            continue
        answer = visit.page.goto(f"{visit.base}{path}")
        if not answer or "text/html" not in answer.headers.get("content-type", ""):
            continue
        assert answer.status < 400, f"{path}: {answer.status}"
        alike.append(path)
        waiting.extend(links(visit.page, visit.base))
        visit.page.wait_for_timeout(50)
        tour.wrong += [f"{path}: {harm}" for harm in visit.page.evaluate(HARM)]
        if not visit.page.locator("main h1").first.inner_text().strip():
            tour.wrong.append(f"{path} has no heading")
    tour.screens = [path for alike in seen.values() for path in alike]


@pytest.fixture(scope="package")
def screens(tour: Tour) -> list[str]:
    """Return an address of each kind of screen."""
    return tour.screens


def each_once(screens: list[str]) -> list[str]:
    """Return one address of each screen, whatever its query."""
    return list({_ID.sub("/*", urlsplit(path).path): path for path in reversed(screens)}.values())


def name_of(path: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", kind_of(path).removeprefix("/console").lower()).strip("-") or "overview"


def test_hostile_content_runs_on_no_screen(tour: Tour) -> None:
    assert not tour.wrong, "\n".join(tour.wrong)
    kinds = {name_of(path) for path in tour.screens}
    assert len(kinds) > 25, sorted(kinds)


def test_pictures_of_the_screens_are_made_on_request(
    open_page: Callable[..., Visit], screens: list[str], pictures_folder: Path | None
) -> None:
    if pictures_folder is None:
        pytest.skip("no pictures are requested: SCREENS_TO is not set")
    visit = open_page()
    for name, path in {name_of(path): path for path in reversed(screens)}.items():
        page = visit.go(path)
        for scheme in SCHEMES:
            picture(page, pictures_folder, name, scheme)
    picture_names = {path.name for path in pictures_folder.iterdir()}
    assert {f"{name_of(path)}-{scheme}.png" for path in screens for scheme in SCHEMES} <= picture_names


def test_a_screen_reader_finds_its_way_on_every_screen(open_page: Callable[..., Visit], screens: list[str]) -> None:
    visit = open_page()
    faults: list[str] = []
    for path in each_once(screens):
        visit.go(path)
        faults += visit.serious()
    assert not faults, "\n".join(faults)


def test_every_screen_fits_a_telephone_and_a_wall(open_page: Callable[..., Visit], screens: list[str]) -> None:
    visit = open_page()
    faults = []
    for path in each_once(screens):
        visit.go(path)
        faults += [f"{path} at {width}: {over} px" for width in (360, 2560) if (over := visit.too_wide(width)) > 0]
    assert not faults, "\n".join(faults)


@pytest.mark.rotating
def test_every_screen_can_be_read_without_javascript(open_page: Callable[..., Visit], screens: list[str]) -> None:
    visit = open_page(java_script_enabled=False)
    for path in each_once(screens):
        page = visit.go(path)
        assert page.locator("main h1").first.inner_text().strip(), path
        assert len(page.locator("main").inner_text()) > 40, path
