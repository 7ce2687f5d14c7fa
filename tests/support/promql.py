"""The names in PromQL expressions: metrics, and the labels of their selectors."""

import re
from collections.abc import Iterator
from typing import Any

_METRIC = re.compile(r"\b((?:penstock|process|python)_\w+)\s*(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*[=!]~?\s*\"")


def metrics(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield (metric, labels in its braces) of each selector."""
    for name, chosen in _METRIC.findall(expression):
        yield name, set(_LABEL.findall(chosen))


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    """Yield every query of a Grafana dashboard: of its panels, and of its variables."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
        yield from expressions({"panels": panel.get("panels", []), "templating": {"list": []}})
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]
