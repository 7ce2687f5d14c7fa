"""Tasks of child processes on Markdown and HTML, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.reading.export import markdown, safe_html
from pipeline.reading.sandbox.limits import Task


def _html(task: Task) -> dict[str, Any]:
    return {"html": safe_html.harmless(task["parts"], task["pictures"])}


def _blocks(task: Task) -> dict[str, Any]:
    return {"blocks": markdown.parsed(task["text"])}


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {"blocks": _blocks, "html": _html}
