"""ZIP archives of documents, and archives that mean harm."""

import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.files.filetype import detect
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, Task
from pipeline.reading.text.zip_archive import may_be_archive, unpack, unpacked
from pipeline.settings import DocumentSettings
from tests.support.samples import HEIC_FOLDER, pdf_bytes

PDF = pdf_bytes([])
LIMITS = Limits()
SIZE = {"max_upload_mb": 500, "max_pages": 10, "max_page_points": 1000.0}


@pytest.fixture(autouse=True, scope="module")
def _no_child_stays() -> Iterator[None]:
    yield
    child.close_idle()


def archive(path: Path, files: Mapping[str, bytes], change: Callable[[zipfile.ZipInfo], object] = id) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            change(info)
            written.writestr(info, content)
    return path


def reasons(path: Path, limits: Limits = LIMITS, most: int | None = None) -> dict[str, str] | None:
    """Unpack the archive; return the reason for each file, and check that only the others exist, in one folder."""
    folder = path.parent / "unpacked"
    folder.mkdir()
    before = set(path.parent.rglob("*"))
    facts = {"path": str(path), "name": path.name, "folder": str(folder), "size": SIZE, "most": most}
    try:
        entries = unpack(Task(facts, limits))["entries"]
    finally:
        left = {each for each in set(path.parent.rglob("*")) - before if each.is_file()}
        assert all(each.resolve().is_relative_to(folder.resolve()) and not each.is_symlink() for each in left)
    if entries is None:
        return None
    assert {str(each.relative_to(folder)) for each in left} == {name for name, reason in entries if not reason}
    return dict(entries)


def refused(path: Path, limits: Limits = LIMITS) -> str:
    with pytest.raises(UnitError) as caught:
        reasons(path, limits)
    return caught.value.code


def test_files_are_unpacked_in_order_and_others_have_a_reason(tmp_path: Path) -> None:
    files = {
        "scans/b.pdf": PDF,
        "a.md": b"# Words",
        "photo.heic": (HEIC_FOLDER / "photo.heic").read_bytes(),
        "program.exe": b"MZ" + bytes(90),
        "empty.pdf": b"",
    }
    path = archive(tmp_path / "pile.zip", files)
    assert may_be_archive(path)
    with unpacked(path, "pile.zip", DocumentSettings(), tmp_path) as entries:
        assert entries is not None
        assert [entry.name for entry in entries] == list(files)
        assert [entry.path.read_bytes() for entry in entries if entry.path] == list(files.values())[:3]
        assert [entry.reason for entry in entries[3:]] == ["not of a type that Penstock converts", "it is empty"]
    assert list(tmp_path.iterdir()) == [path], "the copies last as long as the block"


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    files = {"__MACOSX/._a.pdf": b"x", ".DS_Store": b"x", "a/.git/b.pdf": PDF, "a/": b"", "a/c.pdf": PDF}
    assert reasons(archive(tmp_path / "a.zip", files)) == {"a/c.pdf": ""}


def test_office_files_and_books_are_documents(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"word/document.xml": b"<w/>", "[Content_Types].xml": b"<Types/>"})
    assert may_be_archive(path)
    assert reasons(path) is None
    assert not may_be_archive(archive(tmp_path / "b.zip", {"mimetype": b"application/epub+zip"}))


def test_the_content_decides_and_not_the_suffix(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "stored.zip", "w") as written:
        written.writestr("a.pdf", PDF)  # not compressed: PDF readers find it behind its name
    assert detect((tmp_path / "stored.zip").read_bytes()) is None
    assert may_be_archive(archive(tmp_path / "a.pdf", {"a.pdf": PDF}))
    (tmp_path / "b.zip").write_bytes(PDF)
    assert not may_be_archive(tmp_path / "b.zip")
    assert not may_be_archive(tmp_path / "absent.zip")


@pytest.mark.parametrize(
    "name", ["../a.pdf", "a/../../b.pdf", "/etc/a.pdf", "..\\a.pdf", "C:\\a.pdf", "/".join(["a"] * 90) + "/a.pdf"]
)
def test_no_path_leads_out_of_the_archive(tmp_path: Path, name: str) -> None:
    found = reasons(archive(tmp_path / "a.zip", {name: PDF, "good.pdf": PDF}))
    assert found is not None
    assert [*found.values()] == ["its path leads out of the archive", ""]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_pipes_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    def change(info: zipfile.ZipInfo) -> None:
        info.external_attr = (kind | 0o777) << 16

    assert reasons(archive(tmp_path / "a.zip", {"a.pdf": b"/etc/passwd"}, change)) == {"a.pdf": "not an ordinary file"}


def test_archives_within_are_refused(tmp_path: Path) -> None:
    inner = archive(tmp_path / "inner.zip", {"a.pdf": PDF}).read_bytes()
    found = reasons(archive(tmp_path / "a.zip", {"inner.zip": inner, "b.pdf": inner}))
    assert found == dict.fromkeys(("inner.zip", "b.pdf"), "an archive within the archive")


def test_encrypted_files_are_refused_and_others_are_not(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"locked.pdf": PDF, "open.pdf": PDF})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    assert reasons(path) == {"locked.pdf": "it needs a password", "open.pdf": ""}


def test_a_second_file_of_a_name_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"a.pdf": PDF, "A.PDF": PDF, "a.pdf/b.pdf": PDF, "a?.pdf": PDF, "a*.pdf": PDF})
    found = reasons(path)
    assert found is not None
    assert [bool(reason) for reason in found.values()] == [False, True, True, True]


def test_no_reason_names_a_path_of_this_machine(tmp_path: Path) -> None:
    deep = "/".join(["d" * 150] * 30)
    found = reasons(archive(tmp_path / "a.zip", {"a.pdf": PDF, "a.pdf/b.pdf": PDF, f"{deep}/c.pdf": PDF}))
    assert [*(found or {}).values()] == [
        "",
        "it cannot be unpacked: File exists",
        "it cannot be unpacked: File name too long",
    ]


def test_a_file_whose_data_is_damaged_does_not_stop_the_others(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"a.md": b"# words " * 500, "b.md": b"# words"})
    content = bytearray(path.read_bytes())
    at = content.index(b"a.md") + 4
    content[at : at + 6] = b"\xff" * 6
    path.write_bytes(content)
    found = reasons(path)
    assert found is not None
    assert [bool(reason) for reason in found.values()] == [True, False]


def test_bombs_are_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    assert refused(archive(tmp_path / "ratio.zip", {"a.pdf": bytes(50_000_000)})) == "too_large"


def test_archives_above_the_limits_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"a.pdf": os.urandom(2_000_000)})
    assert refused(path, Limits(max_unpacked_bytes=1_000_000)) == "too_large"


def test_a_hundred_thousand_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as written:
        for number in range(100_000):
            written.writestr(zipfile.ZipInfo(f"{number}.pdf"), b"")
    with pytest.raises(UserError) as caught, unpacked(path, path.name, DocumentSettings()):
        pass
    assert (caught.value.code, "100,000 files" in str(caught.value)) == ("too_large", True)


@pytest.mark.parametrize(("name", "unpacked_files"), [("{}.bin", 0), ("{}.txt", 4)])
def test_an_archive_of_more_files_than_asked_for_is_refused_as_soon_as_that_is_known(
    tmp_path: Path, name: str, unpacked_files: int
) -> None:
    count = 13 if name == "{}.bin" else 9
    path = archive(tmp_path / "a.zip", {name.format(number): b"words" for number in range(count)})
    with pytest.raises(UnitError, match="more than the accepted 3 to convert"):
        reasons(path, most=3)
    assert len(list((tmp_path / "unpacked").iterdir())) == unpacked_files


def test_false_sizes_unpack_no_more_than_declared(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"a.pdf": bytes(9_000_000)})
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2") + 24
    content[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(content)
    found = reasons(path)
    assert found is not None
    assert "cannot be unpacked" in found["a.pdf"]


def test_damaged_archives_and_files_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"a.pdf": os.urandom(3000), "b.pdf": PDF})
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(100) + whole[300:])
    found = reasons(path)
    assert found is not None
    assert "cannot be unpacked" in found["a.pdf"]
    assert found["b.pdf"] == ""
    (tmp_path / "unpacked" / "b.pdf").unlink()
    (tmp_path / "unpacked").rmdir()
    path.write_bytes(whole[:-30])
    assert refused(path) == "corrupt"


def test_overlapping_files_unpack_no_more_than_the_limits_allow(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("0.pdf", bytes(1_000_000))
        for number in range(1, 900):
            info = zipfile.ZipInfo(f"{number}.pdf")
            first = written.filelist[0]
            info.header_offset, info.CRC, info.compress_type = 0, first.CRC, first.compress_type
            info.file_size, info.compress_size = first.file_size, first.compress_size
            written.filelist.append(info)
            written.NameToInfo[info.filename] = info
    (tmp_path / "quilt.zip").write_bytes(buffer.getvalue())
    assert refused(tmp_path / "quilt.zip") == "too_large"
