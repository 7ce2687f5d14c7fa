"""Names of frames without a window title, from lines and boxes recognised on drawn screens."""

from pipeline.flows.screenshots.rules.batches import HistoryPack, HistoryThread
from pipeline.flows.screenshots.rules.headings import Box, SeenLine
from pipeline.flows.screenshots.rules.heuristics import UNTITLED, index_by_rules, title_of
from pipeline.flows.screenshots.rules.schemas import VlmIndex
from tests.unit.screenshots.factories import shot

WIDTH, HEIGHT = 1600, 900
Drawn = tuple[str, int, int, int, int]

PANEL: tuple[Drawn, ...] = (("Activities", 6, 2, 78, 23), ("Mon 14:32", 756, 2, 837, 23))
BROWSER: tuple[Drawn, ...] = (
    *PANEL,
    ("Invoices - Acme", 16, 33, 140, 53),
    ("Inbox (3)", 235, 32, 311, 56),
    ("https://acme.example/invoices/2026", 116, 72, 414, 92),
    ("Most Visited Getting Started Wiki Calendar Mail", 17, 109, 390, 130),
    ("Home Products Pricing", 198, 150, 417, 171),
    ("Support Log out", 424, 148, 579, 171),
)
INVOICES: tuple[Drawn, ...] = (
    *BROWSER,
    ("Open invoices of March", 197, 200, 651, 240),
    ("Invoice 2026-17 due 14 March", 196, 266, 624, 292),
    ("Ann pays late; remind her on Friday.", 197, 328, 507, 352),
)
SETTINGS: tuple[Drawn, ...] = (
    *BROWSER,
    ("Settings", 196, 202, 593, 238),
    ("E-mail me when an invoice is paid", 196, 266, 494, 292),
    ("Send a weekly summary", 195, 296, 412, 324),
    ("Save", 195, 328, 322, 352),
)
EDITOR: tuple[Drawn, ...] = (
    *PANEL,
    ("pool.py - penstock - Visual Studio Code", 555, 28, 839, 51),
    ("File Edit Selection View Go Run Terminal Help", 5, 56, 361, 78),
    ("EXPLORER", 16, 91, 87, 112),
    ("def acquire(self, timeout_s: float) -> Connection:", 316, 118, 803, 141),
)
OFFICE: tuple[Drawn, ...] = (
    ("Datei Bearbeiten Ansicht Einfügen Format Extras Fenster Hilfe", 14, 6, 604, 30),
    ("Protokoll der Sitzung", 466, 140, 942, 172),
    ("Anwesend: Ann, Bob und Carla", 466, 208, 712, 231),
)
CHINESE: tuple[Drawn, ...] = (("文件编辑视图工具帮助", 14, 6, 300, 30), ("数据库连接池", 466, 240, 712, 261))

BUTTONS: tuple[Drawn, ...] = (("AutoSave", 37, 13, 84, 28), ("Off", 99, 12, 124, 28), ("Search", 676, 11, 725, 29))
SHEET: tuple[Drawn, ...] = (
    ("冈", 11, 11, 29, 29),
    *BUTTONS,
    ("Book1 - Excel", 248, 12, 340, 28),
    ("File Home Insert", 15, 45, 128, 61),
    ("Merge & Center", 492, 105, 571, 121),
    ("Conditional", 739, 99, 795, 116),
)
LETTER: tuple[Drawn, ...] = (
    *BUTTONS,
    ("Document 10.docx", 242, 12, 339, 28),
    ("General* Last Modified: Just now", 334, 13, 521, 27),
    ("No Spacing", 812, 93, 880, 109),
    ("Title", 1090, 85, 1145, 115),
)
NOTES: tuple[Drawn, ...] = (
    ("Notes for Windows", 738, 8, 864, 22),
    ("Ann Lee", 1376, 6, 1434, 23),
    ("ann111@HOST-26L", 175, 130, 312, 148),
    ("Daily note", 175, 190, 224, 208),
)
TABS: tuple[Drawn, ...] = (
    ("Monday 14:32", 756, 2, 837, 23),
    ("News - today", 170, 10, 300, 26),
    ("Weather", 420, 10, 500, 26),
    ("Rain until the evening", 400, 200, 700, 240),
)


def seen(drawn: tuple[Drawn, ...]) -> list[SeenLine]:
    return [
        SeenLine(text, Box(left / WIDTH, top / HEIGHT, right / WIDTH, bottom / HEIGHT))
        for text, left, top, right, bottom in drawn
    ]


def index(*frames: tuple[Drawn, ...], app: str = "", history: HistoryPack | None = None) -> VlmIndex:
    screens = {number: shot(number, app_hint=app) for number in range(1, len(frames) + 1)}
    lines = {screens[number].id: seen(drawn) for number, drawn in enumerate(frames, 1)}
    texts = {shot_id: "\n".join(line.text for line in read) for shot_id, read in lines.items()}
    return index_by_rules(screens, texts, history or HistoryPack(), lines)


def titles(*frames: tuple[Drawn, ...], app: str = "") -> list[str]:
    return [segment.event.title for segment in index(*frames, app=app).segments]


def test_a_title_bar_with_buttons_names_the_window_and_tabs_and_clocks_do_not() -> None:
    assert titles(SHEET, LETTER, NOTES, TABS) == [
        "Book1 – Excel",
        "Document 10.docx",
        "Notes for Windows",
        "Rain until the evening",
    ]


def test_frames_are_named_by_their_window_or_heading_and_not_by_toolbars() -> None:
    assert titles(INVOICES, SETTINGS, EDITOR, OFFICE, CHINESE) == [
        "Open invoices of March",
        "Settings",
        "pool.py – penstock – Visual Studio Code",
        "Protokoll der Sitzung",
        "数据库连接池",
    ]


def test_a_single_frame_gets_the_same_name() -> None:
    assert [titles(screen)[0] for screen in (INVOICES, EDITOR, OFFICE)] == [
        "Open invoices of March",
        "pool.py – penstock – Visual Studio Code",
        "Protokoll der Sitzung",
    ]


def test_a_frame_with_only_controls_has_no_title_and_a_clock_is_the_last_resort() -> None:
    assert titles((("File Edit View Help", 5, 56, 361, 78),)) == [UNTITLED]
    assert titles((("File Edit View Help", 5, 56, 361, 78), ("Monday, November 11", 700, 400, 900, 420))) == [
        "Monday, November 11"
    ]


def test_toolbars_are_neither_in_the_summary_nor_keywords_but_can_be_searched() -> None:
    analysis = index(INVOICES, SETTINGS)
    summary = analysis.segments[0].event.summary
    assert "Open invoices of March" in summary
    for chrome in ("Activities", "14:32", "https:", "Inbox (3)", "Log out"):
        assert chrome not in summary
    assert "activities" not in analysis.segments[0].keywords
    assert "Most Visited" in analysis.screenshots[0].ocr_text


def test_headings_distinguish_windows_of_a_program_without_titles_and_name_their_threads() -> None:
    history = HistoryPack(threads=[HistoryThread(thread_id="t1", title="Settings – Firefox")])
    analysis = index(INVOICES, INVOICES, SETTINGS, app="Firefox", history=history)
    assert [(segment.event.title, segment.screen_ids) for segment in analysis.segments] == [
        ("Open invoices of March – Firefox", [1, 2]),
        ("Settings – Firefox", [3]),
    ]
    assert [segment.merge_hint.thread_id for segment in analysis.segments] == ["", "t1"]
    screens = {number: shot(number, app_hint="Firefox") for number in (1, 2, 3)}
    assert [title_of(segment, screens) for segment in analysis.segments] == [
        segment.event.title for segment in analysis.segments
    ]
