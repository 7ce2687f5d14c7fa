"""A real browser for the console: Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
NONE = f"there is no browser: none of {', '.join(NAMES)} is on PATH (Debian: apt install chromium)"
SERIOUS = frozenset({"serious", "critical"})
Scheme = Literal["light", "dark"]


def executable() -> str | None:
    """Return the path of this machine's browser."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open a browser without a window."""
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=[*alone, "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """One page of the console in a browser, with the errors there."""

    page: Page
    base: str
    wrong: list[str] = field(default_factory=list)
    """Errors of scripts, breaches of the policy, requests to others, dialogs."""
    refusals_expected: bool = False
    """Allow answers of 400 and more, which browsers report as errors."""

    def watch(self) -> None:
        """Record events that must not happen."""
        self.page.add_init_script("window.hurt = what => (window.hurts ??= []).push(`ran ${what}`)")
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"{self.page.url}: {error}"))
        self.page.on("request", self._asked)
        self.page.on("dialog", self._interrupted)

    def _interrupted(self, dialog: Dialog) -> None:
        self.wrong.append(f"{self.page.url}: {dialog.message}")
        dialog.dismiss()

    def _said(self, message: ConsoleMessage) -> None:
        refused = "Failed to load resource" in message.text
        if message.type == "error" and not (refused and self.refusals_expected):
            self.wrong.append(f"{self.page.url}: {message.text}")

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).scheme in {"http", "https"} and not request.url.startswith(f"{self.base}/"):
            self.wrong.append(f"{self.page.url} asks {request.url}")

    def go(self, path: str) -> Page:
        """Open a page of the console."""
        self.page.goto(f"{self.base}{path}")
        return self.page

    def serious(self) -> list[str]:
        """Return the obstacles for screen readers and for users with poor sight."""
        results: dict[str, Any] = Axe().run(self.page).response
        path = urlsplit(self.page.url).path
        return [
            f"{path}: {rule['id']}: {rule['help']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
            for rule in results["violations"]
            if rule["impact"] in SERIOUS
            for node in rule["nodes"][:3]
        ]

    def too_wide(self, width: int) -> int:
        """Return by how many pixels the page is wider than a window of this width."""
        self.page.set_viewport_size({"width": width, "height": 800})
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@contextmanager
def watched(browser: Browser, base: str, **options: Any) -> Iterator[Visit]:
    """Open a separate window without the state of others, and record its errors."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    context.set_default_timeout(20_000)
    visit = Visit(context.new_page(), base)
    visit.watch()
    try:
        yield visit
    finally:
        context.close()


@contextmanager
def visit(browser: Browser, base: str, **options: Any) -> Iterator[Visit]:
    """Open a separate window. Fails at the end if it had an error."""
    with watched(browser, base, **options) as made:
        yield made
    assert not made.wrong, "\n".join(made.wrong)


def picture(page: Page, folder: Path, name: str, scheme: Scheme) -> None:
    """Return a picture of the whole page, in light or dark."""
    page.emulate_media(color_scheme=scheme)
    page.screenshot(path=folder / f"{name}-{scheme}.png", full_page=True)
