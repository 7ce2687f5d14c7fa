"""Recognition replaces text layers without meaning or without ink; it leaves odd but correct ones."""

import random
from typing import Any

import pytest

from pipeline.providers import local
from pipeline.providers.local import LocalConverter
from pipeline.providers.protocols import PageRef
from pipeline.reading.layout.page import Line
from pipeline.reading.ocr import recognition
from pipeline.reading.pdf import pdfium, quality, text_layer
from pipeline.settings import DocumentSettings, Settings
from tests.support.corpus import corpus_file
from tests.support.pages_here import PagesHere
from tests.support.samples import Sheet, pdf_bytes, shown, shown_lines

ENGLISH = [
    "The pump house stands where the river leaves the valley, and its gates are",
    "opened by hand. In the spring of 1924 the water rose by 3.5 m within a day,",
    "so that the keeper (who lived upstairs) could not reach the upper wheel; he",
    "wrote: all four gates held, the lower road did not. See also figure 12.",
    "Nobody asked him how he had spent the night, and he never said a word of it.",
]
RIGHT = {
    "English": " ".join(ENGLISH),
    "Czech": "Příliš žluťoučký kůň úpěl ďábelské ódy. Vlk zmrzl, zhltl hrst zrn. Strč prst skrz krk, chrt pln skvrn. "
    * 4,
    "Polish": "Zażółć gęślą jaźń; chrząszcz brzmi w trzcinie w Szczebrzeszynie, strząsa skrzydła z dżdżu. " * 4,
    "Welsh": "Mae'r cwm yn brydferth; mynydd, gwlyb, cwrw, ysgwydd, hwyl fawr, tyrd yma, bwthyn. " * 4,
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. " * 4,
    "Icelandic": "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum; þeir eru gæddir viti. " * 4,
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. " * 5,
    "Chinese": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。" * 10,
    "Korean with units": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 5 km, 3 kg, 20 ml, 7 GB "
    * 9,
    "figures": "1,234.50 (17.2%) 99/100 +3 -4 $12.00 2024-11-22; " * 12,
    "contents": "".join(f"{n}.{n} Chapter {n} {'.' * 90} {n}\n{n} Part{' .' * 60} {n}\n" for n in range(9)),
    "code": "for (int i = 0; i < n; ++i) { a[i] = b[i] * (c - d); } return &a[0];\n" * 6,
    "hexadecimal": " ".join(f"{n * 7919:08x}" for n in range(80)),
    "hyphens at line ends": "broken hy\x02phen " * 20,
    "ticks": "✓ passed on the first try ✗ failed ★ 4 of 5 ❶ see below " * 9,
    "too little": "!#$%&/()=?" * 5,
}
MOVED = "".join(chr(max(1, ord(letter) - 29)) for letter in " ".join(ENGLISH))
BROKEN = {
    "moved by 29 places": MOVED,
    "moved, spaces kept": "".join(
        " " if letter == " " else chr(max(33, ord(letter) - 29)) for letter in " ".join(ENGLISH)
    ),
    "signs in order of use": "".join(random.Random(n).choice("!\"#$%&'()*+,-/:;<=>?@A") for n in range(400)),
    "Russian as Western": RIGHT["Russian"].encode("cp1251", "replace").decode("latin-1"),
    "letters of Zapf Dingbats": "".join(
        chr(ord(letter) + 0x26E0) if letter > " " else letter for letter in ENGLISH[0] * 4
    ),
    "controls": "".join(chr(14 + n % 18) + "a" * (n % 5) for n in range(300)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_text_of_any_kind_makes_sense(name):
    assert quality.makes_sense(RIGHT[name])


@pytest.mark.parametrize("name", BROKEN)
def test_letters_for_other_letters_make_none(name):
    assert not quality.makes_sense(BROKEN[name])


@pytest.fixture
def fake_ocr(monkeypatch):
    seen = []

    def read(image, threads):
        seen.append(image.size)
        return recognition.Reading([Line("recognised words " * 40, 10, 10, 900, 40, 20)], 0.97)

    monkeypatch.setattr(recognition, "read", read)
    monkeypatch.setattr(local, "Pages", PagesHere)
    return seen


def converted(path, content, **replaced):
    data = pdf_bytes([Sheet(content)])
    for old, new in replaced.values():
        assert old in data
        data = data.replace(old, new)
    path.write_bytes(data)
    with LocalConverter(Settings()).open(path) as reader:
        return reader.convert(PageRef(path, 1)).text


def test_visible_text_is_taken_without_drawing_the_page(tmp_path, monkeypatch, fake_ocr):
    monkeypatch.setattr(quality, "inked_share", None)
    assert "pump house" in converted(tmp_path / "a.pdf", shown_lines(ENGLISH))
    assert fake_ocr == []


@pytest.mark.parametrize("hidden", [b"3 Tr\n", b"1 1 1 rg\n"], ids=["invisible", "white"])
def test_text_where_nothing_is_seen_gives_way_to_recognition(tmp_path, fake_ocr, hidden):
    frame = b"0 0 0 rg 50 50 500 20 re f\n"
    assert converted(tmp_path / "a.pdf", frame + hidden + shown_lines(ENGLISH)).startswith("recognised words")
    assert len(fake_ocr) == 1


@pytest.mark.parametrize("hidden", [b"3 Tr\n", b"1 1 1 rg\n"], ids=["invisible over what is seen", "white on black"])
def test_hidden_text_where_something_is_seen_is_taken(tmp_path, fake_ocr, hidden):
    # Bars stand for the letters of a scan. On a black ground they would be white letters.
    bars = b"0 0 0 rg " + b"".join(b"%d %d 3 9 re f\n" % (x, 720 - 14 * n) for n in range(5) for x in range(72, 500, 9))
    seen = bars if b"Tr" in hidden else b"0 0 0 rg 0 0 612 792 re f\n"
    assert "pump house" in converted(tmp_path / "a.pdf", seen + hidden + shown_lines(ENGLISH))
    assert fake_ocr == []


def test_a_font_with_letters_for_other_letters_gives_way_to_recognition(tmp_path, fake_ocr):
    moved = [line.translate({n: max(33, n - 29) for n in range(33, 127)}) for line in ENGLISH]
    assert converted(tmp_path / "a.pdf", shown_lines(moved)).startswith("recognised words")


def numbered(order):
    """Return numbers of glyphs: as in most fonts, or as programs number the used glyphs of a text."""
    letters = [chr(code) for code in range(32, 127)]
    if order == "of use":
        letters = list(dict.fromkeys("".join(ENGLISH)))
    return {letter: number for number, letter in enumerate(letters, 3 if order == "of the font" else 1)}


@pytest.mark.parametrize("order", ["of the font", "of use"])
def test_a_font_without_a_unicode_map_gives_way_to_recognition(tmp_path, fake_ocr, order):
    simple = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"
    glyphs = (
        b"<</Type/Font/Subtype/Type0/BaseFont/ABCDEF+Own/Encoding/Identity-H/DescendantFonts[<</Type/Font/Subtype"
        b"/CIDFontType2/BaseFont/ABCDEF+Own/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>"
        b"/FontDescriptor<</Type/FontDescriptor/FontName/ABCDEF+Own/Flags 4/FontBBox[0 0 1 1]/ItalicAngle 0/Ascent 1"
        b"/Descent 0/StemV 80>>>>]>>"
    )
    numbers = numbered(order)
    codes = ["".join(f"{numbers[letter]:04x}" for letter in line) for line in ENGLISH]
    content = "".join(f"BT /F1 12 Tf 72 {720 - 14 * n} Td <{code}> Tj ET\n" for n, code in enumerate(codes))
    text = converted(tmp_path / "a.pdf", content.encode(), font=(simple, glyphs))
    assert text.startswith("recognised words")


def test_a_script_that_recognition_does_not_know_keeps_its_poor_text_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(text_layer, "_mapped_share", lambda handle, count: 0.6)
    monkeypatch.setattr(
        recognition, "read", lambda image, threads: recognition.Reading([Line(",", 10, 10, 20, 20, 8)], 0.4)
    )
    assert "pump house" in converted(tmp_path / "a.pdf", shown_lines(ENGLISH))


def test_a_text_layer_that_takes_too_long_gives_way_to_recognition(tmp_path, fake_ocr):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(shown_lines(ENGLISH))]))
    with with_settings(page_timeout_s=1e-9).open(path) as reader:
        assert reader.convert(PageRef(path, 1)).text.startswith("recognised words")


def test_an_overfull_page_gives_way_to_recognition(tmp_path, fake_ocr, monkeypatch):
    monkeypatch.setattr(text_layer, "MAX_CHARACTERS", 100)
    assert converted(tmp_path / "a.pdf", shown_lines(ENGLISH)).startswith("recognised words")


def test_an_outline_of_huge_or_tiny_pages_is_drawn_small(tmp_path):
    for box in ("0 0 14400 14400", "0 0 3 3", "0 0 14400 4"):
        path = tmp_path / "a.pdf"
        path.write_bytes(pdf_bytes([Sheet(b"3 Tr\n" + shown("hidden", 1, 1), box)]))
        with pdfium.open_document(path) as document, document.page(1) as opened:
            assert text_layer.read(opened).quality <= 1


def test_real_text_layers_are_trusted():
    for name in ("multi-column-2p.pdf", "zerox-0013.pdf", "REPAIR-2022-INV-001_multipage.pdf", "header-test-doc.pdf"):
        with pdfium.open_document(corpus_file(f"documents/{name}")) as document, document.page(1) as opened:
            assert text_layer.read(opened).quality >= 0.95


def with_settings(**values):
    return LocalConverter(Settings(documents=DocumentSettings(**values)))


def test_pages_are_drawn_for_recognition_as_chosen(tmp_path, fake_ocr):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(b"0 0 0 rg 50 50 500 20 re f")]))
    for dpi in (72, 144):
        with with_settings(ocr_dpi=dpi).open(path) as reader:
            reader.convert(PageRef(path, 1))
    assert fake_ocr == [(612, 792), (1224, 1584)]


def test_pictures_of_text_pages_are_read_only_if_wanted(tmp_path, fake_ocr):
    path = corpus_file("documents/REPAIR-2022-INV-001_multipage.pdf")
    with with_settings(ocr_pictures=False).open(path) as reader:
        reader.convert(PageRef(path, 1))
    assert fake_ocr == []


def test_cache_key_changes_with_how_text_is_recognised(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(b"")]))
    page = PageRef(path, 1)
    chosen: list[dict[str, Any]] = [{}, {"ocr_dpi": 150}, {"ocr_pictures": False}, {"max_pixels": 20_000}]
    keys = {with_settings(**values).cache_key(page)[0] for values in chosen}
    layouts = {
        LocalConverter(Settings(reading={"layout": layout})).cache_key(page)[0] for layout in ("geometry", "model")
    }
    assert len(keys | layouts) == len(chosen) + 2
