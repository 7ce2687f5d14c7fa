"""The limit on the text of a page, for every provider."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.engine.errors import ErrorKind
from pipeline.flows.documents.work import conversion
from pipeline.flows.documents.work.conversion import PageConversion
from pipeline.flows.documents.work.page import Attempt
from pipeline.providers.protocols import Answer, RejectedAnswer, Usage
from pipeline.reading.sandbox.limits import MAX_PAGE_CHARS

UNIT: Any = SimpleNamespace(model="m", page=3, page_source=3, document_id="d")


def converted(monkeypatch: pytest.MonkeyPatch, characters: int) -> Attempt:
    answer = Answer("x" * characters, "m", Usage(1, 2), layout={"blocks": []})
    monkeypatch.setattr(PageConversion, "_answer", lambda *_: answer)
    return conversion.PageConversion(cast("Any", None), "d").convert(UNIT)


def test_a_page_may_have_a_million_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = converted(monkeypatch, MAX_PAGE_CHARS)
    assert (attempt.error, attempt.answer and attempt.answer.layout) == (None, {"blocks": []})


def test_a_longer_text_fails_its_page_and_its_beginning_is_kept_as_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = converted(monkeypatch, MAX_PAGE_CHARS + 1)
    assert attempt.answer is None
    assert isinstance(attempt.error, RejectedAnswer)
    assert (attempt.error.kind, attempt.error.code) == (ErrorKind.PERMANENT, "truncated")
    assert "1,000,001 characters" in str(attempt.error)
    paid_answer = attempt.error.answer
    assert (len(paid_answer.text), paid_answer.usage, paid_answer.layout) == (MAX_PAGE_CHARS, Usage(1, 2), None)
