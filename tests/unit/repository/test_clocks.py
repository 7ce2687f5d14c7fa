"""Comparisons of rows use the database's time, because hosts' clocks may differ by hours."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OF_THE_HOST = {
    "pipeline/engine/outbox.py": "SQLite has no other",
    "pipeline/engine/tables.py": "named in an error message",
    "pipeline/flows/screenshots/frames/capture.py": "when a frame was taken",
    "pipeline/interfaces/cli/times.py": "how long ago something was, for people, and their zone",
    "pipeline/interfaces/console/page.py": "how long ago something was, for people",
    "pipeline/operations/screenshots.py": "when a frame was taken",
    "pipeline/providers/openai_compatible.py": "against a date in a provider's answer",
    "pipeline/reading/web/fetch.py": "against a date in a server's answer",
    "pipeline/storage/database.py": "SQLite has no other",
    "pipeline/storage/installation.py": "for people",
    "tasks/calls.py": "in an example",
}
"""The modules that may read the host's clock, with the purpose."""


def test_only_listed_modules_read_the_hosts_clock() -> None:
    sources = [path for folder in ("pipeline", "tasks") for path in (ROOT / folder).rglob("*.py")]
    asking = {str(path.relative_to(ROOT)) for path in sources if "datetime.now(" in path.read_text(encoding="utf-8")}
    assert asking == set(OF_THE_HOST)
