"""ZIP archives on the command line."""

import shutil
import zipfile

from tests.support.cli import Cli, new_pdf
from tests.support.samples import HEIC_FOLDER, picture_of


def test_each_file_of_an_archive_is_converted_to_a_place_of_its_own(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf")
    picture_of(["Bitmap"]).save(cli.cwd / "drawing.bmp")
    with zipfile.ZipFile(cli.cwd / "pile.zip", "w") as written:
        written.write(cli.cwd / "report.pdf", "2026/report.pdf")
        written.write(cli.cwd / "drawing.bmp", "drawing.bmp")
        written.write(HEIC_FOLDER / "photo.heic", "2026/photo.heic")
        written.writestr("../escaped.pdf", b"%PDF-1.4")
        written.writestr("program.exe", b"MZ" + bytes(50))
    done = cli.run("convert", "pile.zip", "-o", "out", "--json")
    assert done.code == 0, done.err
    report = done.json()
    assert [(file["input"], file["output"], file["status"]) for file in report["documents"]] == [
        ("pile.zip/2026/report.pdf", "out/pile/2026/report.md", "COMPLETED"),
        ("pile.zip/drawing.bmp", "out/pile/drawing.bmp.md", "COMPLETED"),
        ("pile.zip/2026/photo.heic", "out/pile/2026/photo.heic.md", "COMPLETED"),
    ]
    assert "Harbour dues" in (cli.cwd / "out/pile/2026/photo.heic.md").read_text()
    assert report["reasons"]["pile.zip/program.exe"] == "not of a type that Penstock converts"
    assert "its path leads out of the archive" in report["reasons"].values()
    assert not [*cli.cwd.parent.rglob("escaped.*")]
    shutil.copy(cli.cwd / "pile.zip", cli.cwd / "other.pdf")
    again = cli.run("convert", "pile.zip", "other.pdf", "-o", "out", "--json")
    assert [file["status"] for file in again.documents()] == ["UP_TO_DATE"] * 3 + ["COMPLETED"] * 3
    assert again.documents()[3]["output"] == "out/other/2026/report.md"


def test_an_archive_without_files_to_convert_is_refused(cli: Cli) -> None:
    with zipfile.ZipFile(cli.cwd / "pile.zip", "w") as written:
        written.writestr("program.exe", b"MZ" + bytes(50))
    refused = cli.run("convert", "pile.zip")
    assert (refused.code, "pile.zip has no file to convert" in refused.err) == (1, True), refused.err
    assert "program.exe: not of a type" in refused.err
    (cli.cwd / "cut.zip").write_bytes(b"PK\3\4" + bytes(60))
    assert "cut.zip is damaged" in cli.run("convert", "cut.zip").err
