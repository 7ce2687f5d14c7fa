"""Replies of document models, parsed and judged: `python -m benchmarks.presets`.

Prints a table, and as its last line one JSON object with the keys of `AIMS`. Times are of the processor, so that other
work on the machine does not count. `--misses` names the replies that are
judged wrongly, with the problems found.
"""

import argparse
import json
import time

from benchmarks.support import percentile
from pipeline.reading.replies.form import Form
from pipeline.reading.replies.reply import parse
from tests.support.model_replies import SIZE, replies

AIMS = {"parse_ms_p95": "< 20", "bad_replies_caught": "≥ 0.95", "good_replies_kept": "1.0"}
"""The keys of the last line, in its order."""

_ROUNDS = 40
_WORDS = "The committee met on Tuesday and discussed *the budget* for the next year, $a_i < b_i$ and 12.5 % of it. "
_PARAGRAPHS, _ROWS, _COLUMNS = 30, 30, 8


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.presets", description=__doc__.splitlines()[0])
    parser.add_argument("--misses", action="store_true")
    arguments = parser.parse_args()
    times = {kind: _times_ms(form, raw) for kind, (form, raw) in _dense_pages().items()}
    print(f"{'a dense page as':16} {'characters':>10} {'median ms':>10} {'p95 ms':>8}")
    for kind, (_, raw) in _dense_pages().items():
        print(f"{kind:16} {len(raw):10,} {percentile(times[kind], 0.5):10.1f} {percentile(times[kind], 0.95):8.1f}")
    missed = [reply for reply in replies("bad") if not reply.is_caught]
    doubted = [reply for reply in replies("good") if reply.problems()]
    for reply in [*missed, *doubted] if arguments.misses else []:
        print(f"{reply.name}: {', '.join(sorted(reply.problems())) or 'no problem'}")
    bad, good = len(replies("bad")), len(replies("good"))
    figures = {
        "parse_ms_p95": round(max(percentile(some, 0.95) for some in times.values()), 1),
        "bad_replies_caught": round(1 - len(missed) / bad, 3),
        "good_replies_kept": round(1 - len(doubted) / good, 3),
    }
    print(f"{bad - len(missed)} of {bad} broken replies caught, {good - len(doubted)} of {good} good replies kept")
    for key, aim in AIMS.items():
        print(f"{key:20} {figures[key]:>8}   aim {aim}")
    print(json.dumps(figures))


def _times_ms(form: Form, raw: str) -> list[float]:
    assert parse(form, raw, SIZE).complete
    times = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        parse(form, raw, SIZE)
        times.append((time.process_time() - start) * 1000)
    return times


def _dense_pages() -> dict[str, tuple[Form, str]]:
    """Return, by kind, one page of 9,000 characters with a table of 240 cells, as its model would give it."""
    words = _WORDS * 3
    cells = [[f"cell {row}.{column}" for column in range(_COLUMNS)] for row in range(_ROWS)]
    rows = ["".join(f"<td>{cell}</td>" for cell in row) for row in cells]
    html = "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
    otsl = "".join("".join(f"<fcel>{cell}" for cell in row) + "<nl>" for row in cells)
    tops = [10 + 20 * number for number in range(_PARAGRAPHS)]
    markdown = "\n\n".join([*[f"## Part {top}\n\n{words}" for top in tops], html])
    facts = ("primary_language: en", "is_rotation_valid: True", "rotation_correction: 0", "is_table: False")
    front = "\n".join(["---", *facts, "is_diagram: False", "---", ""])
    ref = "<|ref|>{}<|/ref|><|det|>[[50, {}, 950, {}]]<|/det|>\n{}\n\n"
    mark = "![{}](50,{},950,{}) {}\n\n"
    division = '<div data-bbox="50 {1} 950 {2}" data-label="{0}"><p>{3}</p></div>\n'
    tag = "<{0}><loc_25><loc_{1}><loc_475><loc_{2}>{3}</{0}>\n"
    box = "<|box_start|>050 {:03} 950 {:03}<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>\n"

    def page(pattern: str, text: str, table: str, content: str, *, scale: int = 1) -> str:
        parts = [pattern.format(text, top // scale, (top + 18) // scale, words) for top in tops]
        return "".join([*parts, pattern.format(table, 700 // scale, 950 // scale, content)])

    objects = [{"bbox": [50, top, 950, top + 18], "category": "Text", "text": words} for top in tops]
    objects.append({"bbox": [50, 700, 950, 950], "category": "Table", "text": html})
    return {
        "markdown": (Form(), markdown),
        "front_matter": (Form("front_matter"), front + markdown),
        "ref_det": (Form("ref_det", 999), page(ref, "text", "table", html)),
        "json_blocks": (Form("json_blocks", None), json.dumps(objects)),
        "layout_tokens": (Form("layout_tokens"), "".join(box.format(top, top + 18) for top in tops)),
        "doctags": (Form("doctags", 500), f"<doctag>{page(tag, 'text', 'otsl', otsl, scale=2)}</doctag>"),
        "otsl": (Form("otsl"), otsl),
        "md_boxes": (Form("md_boxes"), page(mark, "text", "table", html)),
        "html_blocks": (Form("html_blocks"), page(division, "Text", "Table", html)),
    }


if __name__ == "__main__":
    main()
