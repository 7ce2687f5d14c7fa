"""The files of a folder that are inputs, and the others that are left out."""

import os

import pytest

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.convert.job import passed_over
from pipeline.reading.files.inputs import discover, is_input_below, manifest_path, other_files


def test_a_folder_yields_the_files_below_it_in_order(tmp_path):
    for name in ("b.PDF", "a.png", "sub/c.tiff", "notes.txt", ".hidden.pdf", ".git/d.pdf", "sub/e.jpeg", "f.HEIC"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [path.relative_to(tmp_path).as_posix() for path in discover([tmp_path])]
    assert names == ["a.png", "b.PDF", "f.HEIC", "sub/c.tiff", "sub/e.jpeg"]


def test_files_are_taken_as_named_and_once(tmp_path):
    odd, other = tmp_path / "no-suffix", tmp_path / "a.pdf"
    odd.touch()
    other.touch()
    assert discover([odd, tmp_path, odd]) == [odd, other]


def test_links_that_lead_out_of_the_folder_are_passed_over(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.pdf").touch()
    (inside / "real.pdf").touch()
    (inside / "same.pdf").symlink_to(inside / "real.pdf")
    (inside / "leaves.pdf").symlink_to(outside / "secret.pdf")
    (inside / "folder").symlink_to(outside)
    (inside / "up").symlink_to(inside)
    (inside / "nowhere.pdf").symlink_to(inside / "absent.pdf")
    (inside / "circle.pdf").symlink_to(inside / "circle.pdf")
    assert [path.name for path in discover([inside])] == ["real.pdf", "same.pdf"]


def test_a_folder_without_inputs_is_refused_with_a_message(tmp_path):
    (tmp_path / "letter.doc").touch()
    with pytest.raises(UserError, match=r"has no inputs.* It has letter.doc") as caught:
        discover([tmp_path])
    assert caught.value.code == "no_inputs"
    with pytest.raises(UserError) as caught:
        discover([tmp_path / "absent"])
    assert caught.value.code == "missing"


def test_results_in_every_format_are_no_inputs_but_files_of_the_same_name_are(tmp_path):
    for name in (
        "a.pdf",
        "a.searchable.pdf",
        "a.html",
        "b.pdf",
        "b.html",
        "a.pages/a-0001.html",
        "a.tables/a-p0001-1.csv",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a.manifest.json").write_text('{"files": ["a.html", "a.searchable.pdf"]}')
    (tmp_path / "b.manifest.json").write_text('{"files": ["b.md"]}')
    found = {path.name for path in discover([tmp_path])} | {path.name for path in other_files([tmp_path])}
    assert found == {"a.pdf", "b.pdf", "b.html"}
    (tmp_path / "a.manifest.json").write_text("[")
    assert "a.searchable.pdf" not in [path.name for path in discover([tmp_path])]
    assert {
        manifest_path(tmp_path / f"a{suffix}").name for suffix in (".md", ".json", ".html", ".txt", ".searchable.pdf")
    } == {"a.manifest.json"}
    assert manifest_path(tmp_path / "a.txt.md").name == "a.txt.manifest.json"


def test_results_in_a_folder_of_inputs_are_neither_inputs_nor_left_out(tmp_path):
    names = {
        "in": ("a.pdf", "sub/b.png", "own.pictures/c.png"),
        "other": ("letter.doc", "sub/notes.md"),
        "result": ("a.md", "a.manifest.json", "a.pictures/1.png", "sub/b.png.json", "sub/b.png.manifest.json"),
        "hidden": (".x.pdf", ".git/d.pdf", ".git/e.docx"),
    }
    for name in [name for some in names.values() for name in some]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {path.relative_to(tmp_path).as_posix() for path in discover([tmp_path])} == set(names["in"])
    assert {path.relative_to(tmp_path).as_posix() for path in other_files([tmp_path])} == set(names["other"])
    below = [path for path in tmp_path.rglob("*") if is_input_below(path, tmp_path)]
    assert sorted(below) == discover([tmp_path]), "a watcher and a walk disagree on inputs"


def test_pipes_and_links_that_lead_out_are_named(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.pdf").touch()
    (tmp_path / "secret.pdf").touch()
    (folder / "link.pdf").symlink_to(tmp_path / "secret.pdf")
    os.mkfifo(folder / "pipe.pdf")
    assert discover([folder]) == [folder / "a.pdf"]
    left_out = other_files([folder])
    assert [path.name for path in left_out] == ["link.pdf", "pipe.pdf"]
    assert passed_over(left_out).count("(a pipe, or a link out of the folder)") == 2
