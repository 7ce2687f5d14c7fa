"""What is never stored: programs and windows that a person named, before anything of their frame is read."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pipeline.settings import ScreenshotSettings


def excluded_by(app: str, window_title: str, settings: ScreenshotSettings) -> str:
    """The setting that excludes such a frame, `excluded_apps` or `excluded_titles`; empty if none does."""
    if _matches(app, settings.excluded_apps):
        return "excluded_apps"
    return "excluded_titles" if _matches(window_title, settings.excluded_titles) else ""


def _matches(text: str, patterns: Sequence[str]) -> bool:
    # Not `fnmatch`: whether it minds case depends on the system.
    return any(fnmatchcase(text.casefold(), pattern.casefold()) for pattern in patterns)
