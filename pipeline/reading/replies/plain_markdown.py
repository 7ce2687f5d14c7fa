"""Replies in Markdown alone, which give no boxes."""

from pipeline.reading.replies import markup, tables
from pipeline.reading.replies.form import Form, Parsed


def read(form: Form, text: str, size: tuple[int, int]) -> Parsed:  # noqa: ARG001 (readers of boxes need the size)
    """Return the reply as harmless Markdown."""
    result = markup.harmless(text, furniture=form.furniture == "keep")
    return Parsed(
        result.text, complete=result.complete, unequal_tables=tables.count_unequal(result.tables, result.text)
    )
