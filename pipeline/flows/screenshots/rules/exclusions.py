"""What is never stored: programs and windows that a person named, before anything of their frame is read."""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def excluded_by(app: str, window_title: str, apps: Sequence[str], titles: Sequence[str]) -> str:
    """The setting whose patterns exclude such a frame, `excluded_apps` or `excluded_titles`; empty if none does."""
    for text, patterns, setting in ((app, apps, "excluded_apps"), (window_title, titles, "excluded_titles")):
        # Not `fnmatch`: whether it minds case depends on the system.
        if any(fnmatchcase(text.casefold(), pattern.casefold()) for pattern in patterns):
            return setting
    return ""
