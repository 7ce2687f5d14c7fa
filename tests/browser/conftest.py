"""One stack with data of every flow, and a browser."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.site import Site, opened
from tests.support.browser import NONE, Visit, chromium, executable, visit
from tests.support.leftovers import short_folder

Open = Callable[..., Visit]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this folder. It ends after them: other tests have their own event loops."""
    if executable() is None:
        if os.environ.get("CI"):
            pytest.fail(NONE)
        pytest.skip(NONE, allow_module_level=True)
    with chromium() as chromium_browser:
        yield chromium_browser


@pytest.fixture(scope="package")
def site(browser: Browser) -> Iterator[Site]:  # without a browser no stack starts
    """A running stack with hostile and harmless data."""
    root = short_folder()
    try:
        with opened(root) as served:
            yield served
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def open_page(browser: Browser, site: Site) -> Iterator[Open]:
    """Opens windows of the console. In each, no script fails, no policy is violated, and no other server is called."""
    with ExitStack() as windows:

        def new(base: str = "", **options: Any) -> Visit:
            return windows.enter_context(visit(browser, base or site.base, **options))

        yield new


@pytest.fixture
def page(open_page: Open) -> Page:
    """Return an empty window."""
    return open_page().page


@pytest.fixture(scope="package")
def pictures_folder() -> Path | None:
    """The folder for pictures of the screens, from SCREENS_TO; without it the tests make none."""
    wanted = os.environ.get("SCREENS_TO")
    if not wanted:
        return None
    folder = Path(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
