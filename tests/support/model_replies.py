"""Replies of document models, good and bad: `tests/data/replies`."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.reading.replies.form import Form, Parsed
from pipeline.reading.replies.problems import Expected, check
from pipeline.reading.replies.reply import parse

_DATA = Path(__file__).resolve().parents[1] / "data" / "replies"
SIZE = (1000, 1400)
"""The picture sent, in pixels."""


@dataclass(frozen=True)
class ModelReply:
    """A reply and the expectations of it, `facts`, as in the file."""

    name: str
    raw: str
    form: Form
    facts: dict[str, Any]

    def parse(self) -> Parsed:
        return parse(self.form, self.raw, SIZE)

    def problems(self) -> set[str]:
        """Return the codes of the problems that are found."""
        expected = Expected(
            words=self.facts.get("words"),
            blank=self.facts.get("blank"),
            script=self.facts.get("script", ""),
            prompt=self.facts.get("prompt", ""),
        )
        finish_reason = self.facts.get("finish", "stop")
        return {
            problem.code for problem in check(self.raw, self.parse(), finish_reason=finish_reason, expected=expected)
        }

    @property
    def is_caught(self) -> bool:
        """Whether one of the expected problems is found."""
        return bool(self.problems() & set(self.facts["problems"]))


@cache
def replies(which: str) -> list[ModelReply]:
    """Return the replies of `good` or `bad`."""
    return [_reply(facts) for facts in tomllib.loads((_DATA / f"{which}.toml").read_text("utf-8"))["reply"]]


def _reply(facts: dict[str, Any]) -> ModelReply:
    units = []
    for number in range(facts.get("times", 0)):
        unit = facts["again"]
        if facts.get("counted"):
            unit = unit.replace("NN", str(60 + 20 * number)).replace("NM", str(75 + 20 * number))
        units.append(unit)
    raw = facts["raw"] + "".join(units) + facts.get("end", "")
    form = Form(
        facts.get("kind", "markdown"), facts.get("scale", 1000) or None, furniture=facts.get("furniture", "keep")
    )
    return ModelReply(facts["name"], raw, form, facts)
