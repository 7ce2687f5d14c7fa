"""The places of results, from names alone."""

import os
from pathlib import Path

import pytest

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.convert.targets import plan
from pipeline.reading.files.inputs import manifest_path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names: str) -> list[Path]:
    """Create files with their folders."""
    for path in map(Path, names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return [Path(name) for name in names]


def paths(output: str, *inputs: str) -> list[str]:
    return [str(target.path) for target in plan([Path(name) for name in inputs], output)]


def refusal(output: str, *inputs: str) -> str:
    with pytest.raises(UserError) as caught:
        plan([Path(name) for name in inputs], output)
    return caught.value.code


def test_default_is_the_name_in_the_current_folder() -> None:
    make("in/report.pdf", "scan.of.page.PNG")
    assert paths("", "in/report.pdf") == ["report.md"]
    assert paths("", "scan.of.page.PNG", "in/report.pdf") == ["scan.of.page.PNG.md", "report.md"]


def test_the_output_is_a_file_unless_its_name_is_a_folders() -> None:
    make("a.pdf", "there/x")
    assert paths("new/name.txt", "a.pdf") == ["new/name.txt"]
    assert paths("new/", "a.pdf") == ["new/a.md"]
    assert paths("there", "a.pdf") == ["there/a.md"]


def test_several_results_go_to_a_folder() -> None:
    make("a.pdf", "b.png", "file")
    assert paths("new", "a.pdf", "b.png") == ["new/a.md", "new/b.png.md"]
    assert refusal("file", "a.pdf", "b.png") == "usage"


def test_standard_output_takes_one_result() -> None:
    make("a.pdf", "b.pdf")
    target = plan([Path("a.pdf")], "-")[0]
    assert (target.path, target.exists) == (None, False)
    assert refusal("-", "a.pdf", "b.pdf") == "usage"


def test_folders_keep_their_shape() -> None:
    make("in/z.pdf", "in/sub/deep/z.pdf", "in/.hidden/h.pdf", "in/notes.txt", "other/z.pdf")
    assert paths("out", "in") == ["out/sub/deep/z.md", "out/z.md"]
    assert paths("", "in/sub") == ["deep/z.md"]
    assert paths("out", "in/sub") == ["out/deep/z.md"], "a folder, also for a single file in it"


def test_names_depend_on_nothing_that_lies_beside() -> None:
    make("a.pdf", "a.png", "a.PDF", "a-2.pdf", "A.tiff")
    together = paths("out", "a.pdf", "a.png", "a.PDF", "a-2.pdf", "A.tiff")
    assert together == ["out/a.md", "out/a.png.md", "out/a.PDF.md", "out/a-2.md", "out/A.tiff.md"]
    alone = [paths("out/", name)[0] for name in ("a.pdf", "a.png", "a.PDF", "a-2.pdf", "A.tiff")]
    assert alone == together


def test_two_inputs_with_one_result_are_refused() -> None:
    make("a.pdf", "x/a.pdf", "a")
    for other in ("x/a.pdf", "a"):
        with pytest.raises(UserError, match=f"a.pdf and {other} would both become out/a.md") as caught:
            plan([Path("a.pdf"), Path(other)], "out")
        assert caught.value.code == "usage"


def test_several_results_need_a_folder_and_not_a_files_name() -> None:
    make("a.pdf", "b.pdf", "in/c.pdf")
    for inputs in (("a.pdf", "b.pdf"), ("in",)):
        assert refusal("out.md", *inputs) == "usage"
        assert refusal("out.JSON", *inputs) == "usage"
        assert len(paths("out.md/", *inputs)) == len(inputs), "a slash at the end must mean a folder"
    assert paths("v1.2", "a.pdf", "b.pdf") == ["v1.2/a.md", "v1.2/b.md"]


def test_same_file_is_converted_once_to_where_its_first_name_says(here: Path) -> None:
    make("in/sub/a.pdf", "b.pdf")
    assert paths("out", "in", "in/sub/a.pdf", str(here / "in" / "sub" / "a.pdf")) == ["out/sub/a.md"]
    assert paths("out", "in/sub/a.pdf", "in") == ["out/a.md"]
    assert paths("out/", "b.pdf", "./b.pdf", "in/../b.pdf") == ["out/b.md"]


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("-rf.pdf", "-rf.md"),
        (".pdf", "file.md"),
        ("no suffix", "no suffix.md"),
        ("s.TIFF", "s.TIFF.md"),
        ("文件.pdf", "文件.md"),
        ("a\nb.pdf", "a b.md"),
        ('q"<>|?*:.pdf', "q_______.md"),
        ("é" * 125 + ".pdf", "é" * 98 + ".md"),
    ],
)
def test_every_name_gives_a_name_that_every_system_takes(name: str, result: str) -> None:
    make(name)
    assert paths("", name) == [result]


def test_link_is_an_input_under_its_own_name() -> None:
    make("real.pdf")
    Path("link.pdf").symlink_to("real.pdf")
    assert paths("", "link.pdf", "real.pdf") == ["link.md", "real.md"]


def test_existing_results_are_known() -> None:
    make("a.pdf", "b.pdf", "a.md")
    assert [target.exists for target in plan([Path("a.pdf"), Path("b.pdf")], "")] == [True, False]


def test_missing_and_empty_inputs_are_refused() -> None:
    make("a.pdf")
    Path("empty").mkdir()
    Path("dangling.pdf").symlink_to("nowhere")
    assert refusal("", "missing.pdf", "a.pdf") == "missing"
    assert refusal("", "dangling.pdf") == "missing"
    assert refusal("", "empty") == "no_inputs"


def test_place_that_cannot_be_written_is_refused() -> None:
    make("a.pdf", "file")
    assert refusal("file/x.md", "a.pdf") == "output"
    assert refusal("file/sub/", "a.pdf") == "output"
    if os.getuid() != 0:
        Path("shut").mkdir(mode=0o500)
        assert refusal("shut/x.md", "a.pdf") == "output"


@pytest.mark.parametrize("name", ["a.manifest.pdf", "A.MANIFEST.pdf", "a.Manifest.pdf"])
def test_no_result_is_called_like_a_manifest(name: str) -> None:
    make("a.pdf", name)
    results = [target.path for target in plan([Path("a.pdf"), Path(name)], "", ".json") if target.path]
    assert [path.name for path in results] == ["a.json", f"{name}.json"]
    every = [str(path).lower() for path in [*results, *map(manifest_path, results)]]
    assert len(set(every)) == 4
