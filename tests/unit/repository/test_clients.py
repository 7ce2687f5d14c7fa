"""One module creates all clients of Redis, so a URL's sentinels, TLS and time limits apply to all of them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_MADE = re.compile(r"\b(?:Strict)?Redis(?:Cluster)?(?:\.from_url)?\(|\bSentinel\(|(?<!httpcore2\.)\bConnectionPool\(")


def test_one_module_makes_them() -> None:
    sources = [path for folder in ("pipeline", "tasks", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    makers = {str(path.relative_to(ROOT)) for path in sources if _MADE.search(path.read_text(encoding="utf-8"))}
    assert makers == {"pipeline/engine/connection.py"}
