"""Tasks of child processes on data from the web, by name."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pipeline.reading.sandbox.limits import SitemapLimits, Task
from pipeline.reading.web import sitemap


def _sitemap(task: Task) -> dict[str, Any]:
    return asdict(sitemap.parse(task.path.read_bytes(), task["name"], SitemapLimits(**task["sitemap"])))


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {"sitemap": _sitemap}
