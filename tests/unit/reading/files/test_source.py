import contextlib
import os
import shutil
import tracemalloc
import unicodedata
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.files import source
from pipeline.reading.files.filetype import detect
from pipeline.reading.files.source import (
    MAX_NAME_BYTES,
    SourceInfo,
    parse_page_range,
    safe_filename,
)
from pipeline.reading.ocr import images
from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.pdf import pdfium
from pipeline.reading.pdf.conversion import open_source
from pipeline.reading.pdf.pages import Options
from pipeline.reading.pdf.source_check import inspect
from pipeline.settings import DocumentSettings
from tests.support.corpus import corpus_file, field_file
from tests.support.samples import HEIC_FOLDER, encrypted_pdf, pdf_bytes, picture_of, sized_pdf, text_pdf

LIMITS = DocumentSettings()


def refused(path, limits=LIMITS):
    with pytest.raises(UserError) as caught:
        inspect(path, limits)
    assert path.name in str(caught.value)
    return caught.value


# Accepted files


def test_pdf_is_known_by_its_content_and_counted(tmp_path):
    path = text_pdf(tmp_path / "photo.png", [["a"], ["b"], []])
    assert inspect(path, LIMITS) == SourceInfo("pdf", 3, path.stat().st_size)


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "tiff", "gif", "bmp"])
def test_pictures_are_known_by_their_content(tmp_path, name):
    path = tmp_path / "no-suffix"
    picture_of(["x"]).save(path, format=name)
    assert inspect(path, LIMITS) == SourceInfo(name, 1, path.stat().st_size)


def test_frames_of_a_tiff_are_pages(tmp_path):
    path = tmp_path / "fax.tif"
    frames = [Image.new("1", (100 + n, 50)) for n in range(5)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    progress: list[float] = []
    assert inspect(path, LIMITS, progress.append).pages == 5
    assert len(progress) == 5  # each frame has its own time limit


@pytest.mark.parametrize("name", ["photo", "burst"])
def test_heic_is_known_by_its_content_and_its_first_picture_counts(tmp_path, name):
    path = shutil.copyfile(HEIC_FOLDER / f"{name}.heic", tmp_path / "a.jpg")
    assert inspect(path, LIMITS) == SourceInfo("heic", 1, path.stat().st_size)


@pytest.mark.parametrize("kept", [30, 400, 5000])
def test_truncated_heic_is_refused(tmp_path, kept):
    (tmp_path / "cut.heic").write_bytes((HEIC_FOLDER / "photo.heic").read_bytes()[:kept])
    assert refused(tmp_path / "cut.heic").code == "corrupt"


def test_heic_with_too_many_pixels_is_refused_before_it_is_decoded(tmp_path):
    assert refused(shutil.copyfile(HEIC_FOLDER / "huge.heic", tmp_path / "a.heic")).code == "too_many_pixels"


def test_avif_and_words_that_begin_like_a_bitmap_are_no_pictures():
    assert detect(b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf") is None
    assert detect(b"BMW and other makers of cars") is None


@pytest.mark.parametrize("name", ["webp", "gif"])
def test_animation_is_its_first_picture(tmp_path, name):
    path = tmp_path / f"moving.{name}"
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "green")]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert inspect(path, LIMITS).pages == 1


def test_files_that_only_forbid_copying_are_accepted():
    assert inspect(corpus_file("documents/copy-protected.pdf"), LIMITS).pages == 2


def test_many_pages_are_accepted(tmp_path):
    assert inspect(sized_pdf(tmp_path / "a.pdf", *["0 0 612 792"] * 3000), LIMITS).pages == 3000
    assert inspect(corpus_file("documents/DA-619p.pdf"), LIMITS).pages == 619


# Refused files


def test_folders_and_missing_or_empty_files_are_refused(tmp_path):
    assert refused(tmp_path / "absent.pdf").code == "missing"
    assert refused(tmp_path).code == "directory"
    (tmp_path / "empty.pdf").touch()
    assert refused(tmp_path / "empty.pdf").code == "empty"
    assert refused(tmp_path / "empty.pdf" / "below.pdf").code == "missing"


def test_named_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.pdf")
    assert refused(tmp_path / "pipe.pdf").code == "unsupported"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_read_permission_is_refused(tmp_path):
    path = text_pdf(tmp_path / "secret.pdf", [["x"]])
    path.chmod(0)
    assert refused(path).code == "unreadable"


def test_file_that_cannot_be_opened_is_refused(tmp_path, monkeypatch):
    path = text_pdf(tmp_path / "secret.pdf", [["x"]])

    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(source, "read_head", refuse)
    assert refused(path).code == "unreadable"


@pytest.mark.parametrize("content", [b"just words", b"PK\x03\x04", b"GIF88a" + bytes(50), b"\0" * 2000, b"II*"])
def test_other_files_are_refused_with_the_types_that_are_accepted(tmp_path, content):
    path = tmp_path / "paper.pdf"
    path.write_bytes(content)
    error = refused(path)
    assert error.code == "unsupported"
    assert "PDF, PNG, JPEG, WebP, TIFF, HEIC" in str(error)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("failing-encrypted.pdf", "encrypted"),
        ("password.pdf", "encrypted"),
        ("failing-invalid.pdf", "unsupported"),
        ("failing-missing-root.pdf", "corrupt"),
        ("failing-missing-pages.pdf", "corrupt"),
    ],
)
def test_real_broken_files_are_refused(name, code, tmp_path):
    # The files opened before must not matter: without an error of its own, PDFium reports that of the last file.
    for before in (encrypted_pdf(tmp_path / "locked.pdf"), text_pdf(tmp_path / "fine.pdf", [["x"]])):
        with pytest.raises(UserError) if before.name == "locked.pdf" else pytest.MonkeyPatch.context():
            inspect(before, LIMITS)
        assert refused(corpus_file(f"documents/{name}")).code == code


def test_encryption_that_pdfium_cannot_undo_is_neither_damage_nor_a_wrong_password():
    assert refused(field_file("issue19484_1.pdf")).code == "encryption"


def test_a_damaged_page_costs_itself_alone():
    path = field_file("Pages-tree-refs.pdf")
    assert inspect(path, LIMITS).pages == 2
    with open_source(path, Options()) as pages:
        assert pages.convert(1).text.strip() == "Testcase: ’Pages loop’"
        with pytest.raises(UnitError, match=r"Page 2 of Pages-tree-refs\.pdf is damaged"):
            pages.convert(2)


def test_real_binary_file_is_refused():
    assert refused(corpus_file("knowledge/random.bin")).code == "unsupported"


def test_broken_pdfs_are_refused(tmp_path):
    whole = text_pdf(tmp_path / "a.pdf", [["a"]]).read_bytes()
    for content in (whole[:40], b"%PDF-1.7\n%%EOF", whole[:9] + bytes(len(whole) - 9)):
        (tmp_path / "broken.pdf").write_bytes(content)
        assert refused(tmp_path / "broken.pdf").code == "corrupt"
    assert refused(encrypted_pdf(tmp_path / "locked.pdf")).code == "encrypted"
    (tmp_path / "none.pdf").write_bytes(pdf_bytes([]))
    assert refused(tmp_path / "none.pdf").code == "no_pages"


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "tiff", "gif", "bmp"])
@pytest.mark.parametrize("size", [0.05, 0.5, 0.95])
def test_truncated_pictures_are_refused(tmp_path, name, size):
    path = tmp_path / "cut"
    Image.effect_noise((300, 300), 50).convert("RGB").save(path, format=name)
    content = path.read_bytes()
    path.write_bytes(content[: max(40, int(len(content) * size))])
    assert refused(path).code == "corrupt"


def test_a_truncated_second_frame_is_refused(tmp_path):
    path = tmp_path / "cut.tiff"
    frames = [Image.effect_noise((300, 300), 50) for _ in range(2)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    path.write_bytes(path.read_bytes()[:-20_000])
    assert refused(path).code == "corrupt"


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "tiff", "gif", "bmp", "heic", "pdf"])
@given(cut=st.integers(min_value=0, max_value=3000), junk=st.binary(min_size=1, max_size=40))
def test_damage_never_gives_another_error(tmp_path_factory, name, cut, junk):
    path = tmp_path_factory.mktemp("damage") / "x"
    if name == "pdf":
        text_pdf(path, [["some text"], ["more"]])
    elif name == "heic":
        shutil.copyfile(HEIC_FOLDER / "burst.heic", path)
    else:
        Image.effect_noise((30, 30), 50).save(path, format=name)
    content = path.read_bytes()
    cut %= len(content)
    path.write_bytes(content[:cut] + junk + content[cut + len(junk) :])
    with contextlib.suppress(UserError, UnitError):
        inspect(path, LIMITS)
        with open_source(path, Options()) as source:
            source.render(1, path.parent / "out", Rendition(72), 100_000)


def test_too_large_files_are_refused_by_their_size_alone(tmp_path):
    path = tmp_path / "large.pdf"
    with path.open("wb") as file:
        file.truncate(1_000_001)
    assert refused(path, DocumentSettings(max_upload_mb=1)).code == "too_large"


def test_too_many_pages_are_refused(tmp_path):
    path = sized_pdf(tmp_path / "a.pdf", *["0 0 10 10"] * 4)
    assert inspect(path, DocumentSettings(max_pages=4)).pages == 4
    assert refused(path, DocumentSettings(max_pages=3)).code == "too_many_pages"
    frames = [Image.new("1", (9, 9)) for _ in range(4)]
    frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
    assert refused(tmp_path / "a.tiff", DocumentSettings(max_pages=3)).code == "too_many_pages"


def test_largest_page_of_pdf_is_accepted_and_larger_ones_are_named(tmp_path):
    assert inspect(sized_pdf(tmp_path / "a.pdf", "0 0 14400 14400"), LIMITS).pages == 1
    error = refused(sized_pdf(tmp_path / "b.pdf", "0 0 612 792", "0 0 10 14401"))
    assert error.code == "page_size"
    assert "Page 2" in str(error)


@pytest.mark.parametrize("size", [(0.0, 5.0), (5.0, -1.0), (float("nan"), 5.0), (5.0, float("inf"))])
def test_pages_without_a_proper_size_are_refused(tmp_path, monkeypatch, size):
    monkeypatch.setattr(pdfium.Document, "page_size", lambda self, number: size)
    assert refused(sized_pdf(tmp_path / "a.pdf", "0 0 10 10")).code == "page_size"


def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path):
    for width, height in ((30_000, 3_000), (30_000, 30_000), (200_000, 200_000)):
        path = tmp_path / "bomb.png"
        small = Image.new("1", (8, 8))
        small.save(path)
        content = bytearray(path.read_bytes())
        content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
        content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
        path.write_bytes(content)
        tracemalloc.start()
        assert refused(path).code == "too_many_pixels"
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
        tracemalloc.stop()


def test_bomb_in_a_later_frame_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_DECODED_PIXELS", 5_000)
    frames = [Image.new("1", size) for size in ((50, 50), (100, 100))]
    frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
    assert refused(tmp_path / "a.tiff").code == "too_many_pixels"


# Page ranges


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", [1, 2, 3, 4, 5, 6, 7]),
        ("  ", [1, 2, 3, 4, 5, 6, 7]),
        ("1-5,7", [1, 2, 3, 4, 5, 7]),
        ("7-", [7]),
        ("3-", [3, 4, 5, 6, 7]),
        ("-4", [1, 2, 3, 4]),
        (" 7 , 1 - 2 ", [1, 2, 7]),
        ("5,1,5,4-6", [1, 4, 5, 6]),
        ("007", [7]),
    ],
)
def test_page_ranges(text, numbers):
    assert parse_page_range(text, 7) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "8",
        "1-8",
        "8-",
        "-8",
        "0-3",
        "5-3",
        "a",
        "1,b",
        "-",
        ",",
        "1,",
        "1--3",
        "1-2-3",
        "1;2",
        "٣",
        "1.5",
        "9" * 50,
    ],
)
def test_bad_page_ranges_are_refused_with_the_part_and_the_page_count(text):
    with pytest.raises(UserError) as caught:
        parse_page_range(text, 7)
    assert caught.value.code == "page_range"
    assert "pages 1 to 7" in str(caught.value)


def test_the_offending_part_is_named():
    with pytest.raises(UserError, match="“6-2” is the wrong way round"):
        parse_page_range("1-3, 6-2", 7)
    with pytest.raises(UserError, match="“12-” is outside"):
        parse_page_range("12-", 7)


@given(st.text(alphabet="0123456789-, x", max_size=20) | st.text(), st.integers(min_value=1, max_value=300))
def test_page_ranges_give_ascending_pages_of_the_document_or_a_user_error(text, pages):
    with contextlib.suppress(UserError):
        numbers = parse_page_range(text, pages)
        assert numbers == sorted(set(numbers))
        assert set(numbers) <= set(range(1, pages + 1))
        assert numbers


@given(st.sets(st.integers(min_value=1, max_value=99), min_size=1))
def test_a_page_range_yields_the_listed_pages(numbers):
    assert parse_page_range(",".join(map(str, numbers)), 99) == sorted(numbers)


# Names


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\a.pdf", "a.pdf"),
        ("a/b/", "b"),
        ("..", "file"),
        ("", "file"),
        ("///", "file"),
        (".pdf", "file.pdf"),
        ("a\x00b\n.pdf", "ab .pdf"),
        ("\u202efdp.exe", "fdp.exe"),
        ('a<b>"c|.pdf', "a_b__c_.pdf"),
        ("Bericht für März.pdf", "Bericht für März.pdf"),
        ("发票.pdf", "发票.pdf"),
        ("a.tar.gz", "a.tar.gz"),
        (" . .pdf", "file.pdf"),
    ],
)
def test_names_are_made_safe(name, safe):
    assert safe_filename(name) == safe.replace(" .pdf", ".pdf")


def test_long_names_are_cut_between_characters_and_keep_their_suffix():
    safe = safe_filename("漢" * 300 + ".pdf")
    assert safe.endswith("漢.pdf")
    assert MAX_NAME_BYTES - 3 < len(safe.encode()) <= MAX_NAME_BYTES


@given(st.text(max_size=300) | st.text(alphabet="./\\ a\u202e\x00é漢-", max_size=300))
def test_safe_names_are_safe_and_stay_as_they_are(name):
    safe = safe_filename(name)
    assert safe
    assert len(safe.encode()) <= MAX_NAME_BYTES
    assert safe not in {".", ".."}
    assert not set(safe) & set('/\\<>:"|?*')
    assert not any(unicodedata.category(char).startswith("C") for char in safe)
    assert safe_filename(safe) == safe
