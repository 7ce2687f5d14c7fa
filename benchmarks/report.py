"""What is measured: the figures with their aims, and how they are shown."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Aim:
    """One figure: what it is, and the value that it should reach."""

    what: str
    value: float
    at_least: bool
    unit: str = ""

    def met(self, value: float) -> bool:
        return value >= self.value if self.at_least else value <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.value:g} {self.unit}".rstrip()


AIMS = {
    "pages_per_s_ratio": Aim("pages/s, of a bare pool's", 0.85, at_least=True),
    "worker_peak_mb": Aim("peak memory of the cpu worker (PSS)", 300, at_least=False, unit="MB"),
    "provider_utilisation": Aim("use of a provider's 32 calls at once", 0.90, at_least=True),
    "submit_to_start_ms": Aim("submit to the first page's start", 100, at_least=False, unit="ms"),
    "small_document_ratio": Aim("3 pages beside 619, of 2 × alone + 1 s", 1, at_least=False),
    "publish_2000_s": Aim("publishing a 2,000-page document", 0.2, at_least=False, unit="s"),
    "cold_convert_s": Aim("penstock convert, empty folder, no stack", 6, at_least=False, unit="s"),
    "warm_convert_s": Aim("penstock convert beside penstock up", 1.5, at_least=False, unit="s"),
    "units_vs_chord_quantum": Aim("empty units/s, of a plain chord's", 9, at_least=True),
    "units_vs_chord_single": Aim("the same, one unit a message", 0.40, at_least=True),
}
"""The keys of the last line, in its order."""


@dataclass
class Report:
    """What one part found: figures by key, and the facts behind them as (what, value)."""

    figures: dict[str, float] = field(default_factory=dict)
    facts: list[tuple[str, str]] = field(default_factory=list)

    def figure(self, key: str, value: float) -> None:
        assert key in AIMS, key
        self.figures[key] = round(value, 3)

    def fact(self, what: str, value: str) -> None:
        self.facts.append((what, value))

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def from_json(line: str) -> Report:
    found: dict[str, Any] = json.loads(line)
    return Report(found["figures"], [(what, value) for what, value in found["facts"]])


def heading() -> str:
    return f"{'':48}{'FOUND':>22}  {'AIM':10}\n{'-' * 88}"


def lines(report: Report) -> list[str]:
    """The report as lines of the table: the figures, and below them the facts."""
    rows = []
    for key, value in report.figures.items():
        aim = AIMS[key]
        found = f"{value:g} {aim.unit}".rstrip()
        rows.append(f"{key:25}{found:>45}  {aim!s:10} {'met' if aim.met(value) else 'NOT MET'}")
        rows.append(f"  {aim.what}")
    return rows + [f"    {what:44}{value:>22}" for what, value in report.facts]


def last_line(figures: Mapping[str, float]) -> str:
    """One JSON object with exactly the known keys; null for what was not measured."""
    return json.dumps({key: figures.get(key) for key in AIMS})


def spread(values: list[float], unit: str, digits: int = 2) -> str:
    """Values for people, in the order in which they were measured."""
    return " ".join(f"{value:.{digits}f}" for value in values) + f" {unit}"
