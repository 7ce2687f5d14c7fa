"""Few child processes at once render Markdown, each expensive text once, and they end at a time limit."""

import secrets
from dataclasses import replace

import pytest

from pipeline.interfaces.console import markdown
from pipeline.interfaces.console.markdown import MAX_CHARACTERS, RENDERINGS, html
from pipeline.reading.export import effort
from pipeline.reading.sandbox import child

CALLER = "key-1"
PICTURES = "![a" * 60_000 + "](x)" * 40_000


def fresh(text: str) -> str:
    """Return the text with a suffix that no other test has."""
    return f"{secrets.token_hex(8)}\n\n{text}"


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the tasks of child processes."""
    texts: list[str] = []
    ask = child.Session.ask

    def counted(session: child.Session, task: dict[str, str], *arguments: object) -> object:
        texts.append(task["task"])
        return ask(session, task, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(child.Session, "ask", counted)
    return texts


@pytest.mark.parametrize("text", [PICTURES, "![" * 200_000], ids=["pictures", "brackets"])
def test_a_text_past_its_time_limit_is_shown_as_source_and_not_retried(
    text: str, tasks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "_LIMITS", replace(effort._LIMITS, timeout_s=0.3, total_s=0.3))
    text = fresh(text)
    for _ in range(3):
        shown = html([text], CALLER)
        assert "takes too long" in shown.note
        assert text[:1000] in shown.parts[0]
    assert tasks == ["html"]


def test_a_large_text_is_rendered_once(tasks: list[str]) -> None:
    text = fresh("| *a* | b |\n|---|---|\n" + "| 1 | 2 |\n" * 300)
    for _ in range(3):
        shown = html([text, "", "**b**"], CALLER)
        assert shown.note == ""
        assert shown.parts[0].count("<tr>") == 301
        assert shown.parts[1:] == ["", "<p><strong>b</strong></p>\n"]
    assert tasks == ["html"]


def test_a_small_text_needs_no_child(tasks: list[str]) -> None:
    assert html([fresh("**b**")], CALLER).parts[0].endswith("<p><strong>b</strong></p>\n")
    assert tasks == []


def test_a_caller_at_its_limit_of_renderings_gets_further_texts_as_source(tasks: list[str]) -> None:
    text = fresh("*a* " * 500)
    with RENDERINGS.one(CALLER), RENDERINGS.one(CALLER):
        shown = html([text], CALLER)
        assert "Reload the page" in shown.note
        assert "*a* *a*" in shown.parts[0]
        assert tasks == []
        assert "<em>a</em>" in html([text], "key-2").parts[0]
    assert html([text], CALLER).note == ""


def test_the_cache_of_rendered_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_MOST_KEPT", 1_000)
    cache = markdown._Kept()
    for number in range(10):
        cache.put(b"%d" % number, ["a" * 100])
    assert [number for number in range(10) if cache.get(b"%d" % number)] == [7, 8, 9]


def test_a_text_without_end_is_cut() -> None:
    assert len(html(["a" * (MAX_CHARACTERS + 1000)], CALLER).parts[0]) < MAX_CHARACTERS + 100
