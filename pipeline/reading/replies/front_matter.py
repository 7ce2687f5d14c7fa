"""olmOCR's replies: five lines of facts about the page, then its Markdown."""

from dataclasses import replace

from pipeline.reading.replies import plain_markdown
from pipeline.reading.replies.form import Form, Parsed

_FIELDS = frozenset({"primary_language", "is_rotation_valid", "rotation_correction", "is_table", "is_diagram"})
_TURNS = frozenset({"0", "90", "180", "270"})
_MAX_LINES = 12


def read(form: Form, text: str, size: tuple[int, int]) -> Parsed:
    """Return the Markdown below the facts. `rotation` is the correction that the model asks for."""
    head, body, closed = _split(text)
    facts: dict[str, str] = {}
    complete = closed
    for line in head:
        name, colon, value = line.partition(":")
        complete = complete and bool(colon) and name.strip() in _FIELDS and name.strip() not in facts
        facts[name.strip()] = value.strip().strip("\"'").lower()
    turn, upright = facts.get("rotation_correction", ""), facts.get("is_rotation_valid", "")
    complete = complete and facts.keys() == _FIELDS and turn in _TURNS and upright in {"true", "false"}
    parsed = plain_markdown.read(form, "" if body.strip() in {"null", "None"} else body, size)
    return replace(
        parsed,
        rotation=int(turn) if turn in _TURNS and upright == "false" else 0,
        complete=parsed.complete and complete,
        blank=complete and not body.strip(),
    )


def _split(text: str) -> tuple[list[str], str, bool]:
    """Return (the lines between the two marks, the text below, whether both marks are there)."""
    lines = text.split("\n")
    if lines[0].strip() != "---":
        return [], text, False
    for number, line in enumerate(lines[1:_MAX_LINES], 1):
        if line.strip() == "---":
            return [line for line in lines[1:number] if line.strip()], "\n".join(lines[number + 1 :]).strip("\n"), True
        if ":" not in line and line.strip():
            break
    return [], text, False
