"""How things look at the terminal: results on standard output, everything else on standard error."""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

STYLES = {
    "COMPLETED": "green",
    "FAILED": "red",
    "PARTIAL_FAILED": "yellow",
    "CANCELLED": "dim",
    "PAUSED": "magenta",
}


def print_json(value: Any) -> None:
    """JSON on standard output, for programs."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def table(*columns: str, **options: Any) -> Table:
    """A plain table that survives being copied."""
    made = Table(box=None, header_style="bold", pad_edge=False, **options)
    for column in columns:
        name, _, justify = column.partition(">")
        made.add_column(name, justify="right" if justify else "left", overflow="fold", no_wrap=name == "ID")
    return made


def state(name: str) -> str:
    """A state's name in its colour."""
    style = STYLES.get(name, "cyan")
    return f"[{style}]{name}[/{style}]"


def ago(moment: datetime | None) -> str:
    """How long ago, roughly."""
    if moment is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def one_line(text: str | None, width: int = 100) -> str:
    """A text as one line, cut, and safe from being read as markup."""
    flat = " ".join((text or "").split()).replace("[", "\\[")
    return flat if len(flat) <= width else flat[: width - 1] + "…"
