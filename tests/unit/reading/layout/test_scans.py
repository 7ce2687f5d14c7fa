"""Scans: what only the places of recognised words and the rules in the picture show."""

from pipeline.reading.layout.model import Line
from pipeline.reading.layout.page import convert, render
from tests.support.layout import grid, page


def seen(text, left, top, size=10.0, sure=0.99):
    return Line(text, left, top, left + 0.5 * size * len(text), top + size, size, sure=(sure,) * len(text.split()))


def prose(top, count=8):
    return [
        seen(f"Line number {n} of a text which goes on and on until its end", 50, top + 12 * n) for n in range(count)
    ]


def markdown(*lines, rules=()):
    return render(convert(page(*lines, rules=rules)))


def test_a_signature_and_a_stamp_in_boxes_side_by_side_are_no_headings():
    signature = [seen("Signed by", 60, 402, 14), seen("Signature:", 60, 432), seen("Dr. Ada Weber", 120, 428, 17)]
    signature.append(seen("License: 17", 60, 455))
    stamp = [seen("APPROVED", 433, 403, 16), seen("Records Office", 416, 425, 14), seen("Code: 4711", 440, 450)]
    boxes = [*grid([50, 300], [395, 475]), *grid([380, 550], [396, 476])]
    text = markdown(*prose(100), *signature, *stamp, *prose(520), rules=boxes)
    assert "APPROVED\nRecords Office\nCode: 4711\n" in text
    assert "\n\nSignature: Dr. Ada Weber\n\n" in text
    assert [row for row in text.splitlines() if row.startswith("#")] == ["# Signed by"]


def test_values_printed_over_one_another_join_no_columns_and_reach_out_of_their_box():
    rows = [
        ("Name:", "Ada Weber", "Doctor: Q0aRBhaRd"),
        ("Born:", "15 March", "Ward: Four"),
        ("Number:", "4711", ""),
    ]
    lines = [
        seen(text, left, 130 + 20 * n, sure=0.3 if "Q0a" in text else 0.99)
        for n, row in enumerate(rows)
        for text, left in zip(row, (60, 150, 320), strict=True)
        if text
    ]
    over = [seen("Blnorsedgey:", 60, 190), seen("adeBiuShietd MPolicy #BCB-46782lumber: 44", 150, 190, sure=0.3)]
    text = markdown(
        seen("Report:", 60, 80), seen("R-17", 150, 80), *lines, *over, *prose(260), rules=grid([50, 340], [118, 210])
    )
    assert "<th>Ada Weber</th><th>Doctor: Q0aRBhaRd</th>" in text
    assert "<td>15 March</td><td>Ward: Four</td>" in text
    assert "Report: R-17\n" in text


def test_an_item_in_capitals_that_seem_small_is_no_heading():
    items = [
        seen("1. HEADACHE:", 50, 200, 8.8), seen("- Start tablets as needed", 54, 212),
        seen("2. BLOOD:", 50, 236, 8.8), seen("- Increase the dose", 54, 248),
    ]  # fmt: skip
    text = markdown(*prose(60), *items, *prose(300))
    assert "1. HEADACHE:\n" in text
    assert "2. BLOOD:\n" in text
    assert "#" not in text
