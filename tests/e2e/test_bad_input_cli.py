"""Users' mistakes: each gets one sentence with advice, the right exit code, and no traceback."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from PIL import Image

from tests.support.cli import Cli, Result, new_pdf, together
from tests.support.corpus import corpus_file
from tests.support.provider_server import ProviderServer
from tests.support.samples import HEIC_FOLDER, encrypted_pdf, picture_of, sized_pdf

DEAD_REDIS = "redis://127.0.0.1:1/0"
DEAD_DATABASE = "postgresql://user:pass-word@127.0.0.1:1/none"


def assert_explained(result: Result, *words: str, code: int = 1) -> None:
    output = result.out + result.err
    assert result.code == code, output
    assert "Traceback" not in output
    for word in words:
        assert word in output, output


def make_bad_files(folder: Path) -> dict[str, str]:
    """Write files that Penstock refuses; return a word of the reason for each."""
    picture = picture_of(["Some words"])
    picture.save(folder / "whole.png")
    (folder / "cut.png").write_bytes((folder / "whole.png").read_bytes()[:2000])
    picture.save(folder / "whole.jpg")
    (folder / "cut.jpg").write_bytes((folder / "whole.jpg").read_bytes()[:4000])
    picture.save(folder / "picture.ico")
    Image.new("1", (12_000, 12_000)).save(folder / "large.png")
    sized_pdf(folder / "too-wide.pdf", "0 0 612 792", "0 0 14401 100")
    encrypted_pdf(folder / "locked.pdf")
    (folder / "empty.pdf").touch()
    (folder / "text.pdf").write_text("%PDF-1.4 and nothing more")
    os.mkfifo(folder / "pipe.pdf")
    return {
        "cut.png": "damaged or cut off",
        "cut.jpg": "damaged or cut off",
        "picture.ico": "not of a supported type",
        "large.png": "too many pixels",
        "too-wide.pdf": "Page 2 of too-wide.pdf measures 14401",
        "locked.pdf": "password",
        "empty.pdf": "is empty",
        "text.pdf": "damaged",
        "pipe.pdf": "not an ordinary file",
    }


def test_each_bad_file_is_refused_with_its_reason_and_the_good_ones_are_converted(cli: Cli) -> None:
    refused = make_bad_files(cli.cwd)
    picture_of(["WebP"]).save(cli.cwd / "good.webp")
    picture_of(["Frame one"]).save(
        cli.cwd / "good.tiff", save_all=True, append_images=[picture_of(["Frame two"]), picture_of(["Frame three"])]
    )
    shutil.copyfile(HEIC_FOLDER / "photo.heic", cli.cwd / "good.heic")
    picture_of(["Bitmap"]).save(cli.cwd / "good.bmp")
    picture_of(["Moving one"]).save(cli.cwd / "good.gif", save_all=True, append_images=[picture_of(["Moving two"])])
    sized_pdf(cli.cwd / "huge-but-legal.pdf", "0 0 14400 14400")
    good = {"good.webp": 1, "good.tiff": 3, "good.heic": 1, "good.bmp": 1, "good.gif": 1, "huge-but-legal.pdf": 1}
    result = cli.run("convert", "--json", *refused, *good)
    assert_explained(result)
    documents = {document["input"]: document for document in result.documents()}
    for name, reason in refused.items():
        assert documents[name]["status"] == "REFUSED"
        assert reason in documents[name]["error"]
    for name, pages in good.items():
        assert (documents[name]["status"], documents[name]["pages"]) == ("COMPLETED", pages)
    assert "Frame three" in (cli.cwd / "good.tiff.md").read_text()
    assert "Harbour dues" in (cli.cwd / "good.heic.md").read_text()
    assert "Moving one" in (cli.cwd / "good.gif.md").read_text()


def test_no_stack_starts_for_files_that_are_refused_by_their_first_bytes(alone: Cli) -> None:
    (alone.cwd / "text.pdf").write_text("words and nothing more")
    assert_explained(alone.run("convert", "text.pdf"), "text.pdf is not of a supported type")
    (alone.cwd / "empty.pdf").touch()
    both = alone.run("convert", "text.pdf", "empty.pdf", "--json")
    assert_explained(both)
    assert {document["status"] for document in both.documents()} == {"REFUSED"}
    assert not (alone.data_dir / "penstock.log").exists(), "where a stack that a command starts writes"


BROKEN = {
    "failing-encrypted": "password",
    "failing-invalid": "not of a supported type",
    "password": "password",
    "failing-missing-pages": "damaged",
    "failing-missing-root": "damaged",
}


def test_broken_corpus_files_are_refused_each_with_its_reason(cli: Cli) -> None:
    paths = {corpus_file(f"documents/{name}.pdf"): reason for name, reason in BROKEN.items()}
    result = cli.run("convert", *paths)
    assert_explained(result, "5 files: 0 written, 5 with problems.")
    problems = result.err.splitlines()[:-1]
    for problem, (path, reason) in zip(problems, paths.items(), strict=True):
        assert problem.startswith(f"{path}: REFUSED: ")
        assert reason in problem
    assert not list(cli.cwd.iterdir())


def test_wrong_page_ranges_are_explained(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=3)
    wrong = {
        "2-9": "outside the document; the document has pages 1 to 3",
        "abc": "not a page or range",
        "3-1": "the wrong way round",
        "0": "outside",
    }
    results = cli.run_all(["convert", "report.pdf", "--pages", pages] for pages in wrong)
    for result, reason in zip(results, wrong.values(), strict=True):
        # The command refuses impossible page ranges before it opens a file.
        assert_explained(result, reason, code=1 if "has pages" in reason else 2)


def test_wrong_paths_are_refused_before_any_work(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "good.pdf")
    (cli.cwd / "nothing").mkdir()
    refused = {
        ("missing.pdf", "good.pdf"): "missing.pdf does not exist",
        ("nothing", "good.pdf"): "nothing has no inputs",
        ("good.pdf", "-o", "good.pdf/x.md"): "cannot write to",
    }
    results = cli.run_all(["convert", "--provider", "ai", *arguments] for arguments in refused)
    for result, reason in zip(results, refused.values(), strict=True):
        assert_explained(result, reason)
    assert not provider.records


def test_wrong_usage_exits_with_2(cli: Cli) -> None:
    for name in ("one.pdf", "two.pdf"):
        new_pdf(cli.cwd / name)
    (cli.cwd / "same").mkdir()
    new_pdf(cli.cwd / "same" / "one.pdf")
    (cli.cwd / "file").touch()
    wrong = {
        ("convert",): "Missing argument",
        ("convert", ""): "a file name is empty",
        ("convert", "--nonsense", "one.pdf"): "No such option",
        ("convert", "one.pdf", "two.pdf", "-o", "-"): "takes one file, not 2",
        ("convert", "one.pdf", "two.pdf", "-o", "file"): "need a folder",
        ("convert", "one.pdf", "two.pdf", "-o", "out.md"): "need a folder (out.md/ if that is its name)",
        ("convert", "one.pdf", "same/one.pdf"): "one.pdf and same/one.pdf would both become one.md",
        ("convert", "one.pdf", "--force", "--keep"): "choose one",
        ("convert", "one.pdf", "--json", "-o", "-"): "choose one",
        ("worker",): "penstock worker --role cpu",
        ("worker", "-Q", "cpu,vision.x"): "there is no provider 'x'; known are 'local', 'ai'",
        ("worker", "--queues=ctrl"): "unknown queue ctrl: choose from maintenance, control, cpu",
        ("nonsense",): "No such command",
    }
    for result, reason in zip(cli.run_all(wrong), wrong.values(), strict=True):
        assert_explained(result, reason, code=2)


def test_each_unusable_provider_has_its_own_message(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "report.pdf")
    convert = ["convert", "report.pdf", "--provider"]
    unknown = cli.run(*convert, "nobody")
    assert_explained(unknown, "no provider 'nobody'", "PENSTOCK_PROVIDERS__NOBODY__BASE_URL", code=2)

    keyless = cli.using(PENSTOCK_PROVIDERS__OPENAI__MODEL="vision-1")
    needed = "provider 'openai' needs a key: set PENSTOCK_PROVIDERS__OPENAI__API_KEY"
    assert_explained(keyless.run(*convert, "openai"), needed)

    provider.configure({"api_key": "another-key"})
    waits = cli.start(*convert, "ai")
    waits.wait_for("refused the key (401): check PENSTOCK_PROVIDERS__AI__API_KEY")
    waits.interrupt()
    assert waits.wait() == 130
    provider.configure({"api_key": "secret-key"})
    assert cli.run("breakers", "close", "ai:vision").code == 0
    assert cli.run(*convert, "ai").code == 0
    assert "secret-key" not in waits.output

    assert_explained(cli.run(*convert, "ai", "--model", "vision-9"), "vision-9")
    waits = cli.start(*convert, "down")
    waits.wait_for("connection")
    waits.interrupt()
    assert waits.wait() == 130


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_loses_no_result(cli: Cli, small_disk: Path) -> None:
    new_pdf(cli.cwd / "report.pdf")
    (small_disk / "filler").write_bytes(b"x" * 65_536)
    target = small_disk / "report.md"
    full = cli.run("convert", "report.pdf", "-o", target)
    assert_explained(full, "no space left on the disk", "free some and try again")
    assert [path.name for path in small_disk.iterdir()] == ["filler"], "no partial result"
    (small_disk / "filler").unlink()
    assert cli.run("convert", "report.pdf", "-o", target).code == 0
    assert "This is page 1" in target.read_text()


def test_full_disk_under_the_data_folder_is_explained(alone: Cli, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 65_536)
    new_pdf(alone.cwd / "report.pdf")
    assert_explained(alone.using(PENSTOCK_DATA_DIR=str(small_disk)).run("convert", "report.pdf"), "full")


WRONG_SETTINGS = [
    ("PENSTOCK_STACK_LINGER_S", "-1", "PENSTOCK_STACK_LINGER_S"),
    ("PENSTOCK_DOCUMENTS__MAX_PAGES", "many", "PENSTOCK_DOCUMENTS__MAX_PAGES"),
    ("PENSTOCK_REDIS_URL", "localhost", "PENSTOCK_REDIS_URL"),
    ("PENSTOCK_DATABASE_URL", "nonsense", "PENSTOCK_DATABASE_URL is not a database URL"),
    ("PENSTOCK_PROVIDER", "nobody", "there is no provider 'nobody'"),
    ("PENSTOCK_SCREENSHOTS__EXCLUDED_APPS", "keepass", "PENSTOCK_SCREENSHOTS__EXCLUDED_APPS must be JSON, like"),
    ("PENSTOCK_SCREENSHOTS__VISION_PROVIDER", "eye", "PENSTOCK_PROVIDERS__EYE__BASE_URL"),
    ("PENSTOCK_REDIS_URL", DEAD_REDIS, "Redis cannot be used"),
    ("PENSTOCK_DATABASE_URL", DEAD_DATABASE, "the database cannot be used"),
    ("PENSTOCK_DATA_DIR", "/dev/null", "PENSTOCK_DATA_DIR names the folder"),
    ("PENSTOCK_DATABASE_URL", "postgresql://u:pass-word@h:pass-word/x", "a port is not a number"),
    ("PENSTOCK_SCREENSHOTS__EXCLUDED_APPS", "[" * 50_000, "PENSTOCK_SCREENSHOTS__EXCLUDED_APPS must be JSON, like"),
]


def test_wrong_settings_are_named(alone: Cli) -> None:
    new_pdf(alone.cwd / "report.pdf")
    users = [alone.using(**{variable: value}) for variable, value, _ in WRONG_SETTINGS]
    results = together(partial(user.run, "convert", "report.pdf") for user in users)
    for result, (_, _, reason) in zip(results, WRONG_SETTINGS, strict=True):
        assert_explained(result, reason)
        assert "pass-word" not in result.err
        assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("content", [b"[providers", b"\xff\xfe", b'[documents]\nmax_pages = "many"\n'])
def test_broken_settings_file_is_named(alone: Cli, content: bytes) -> None:
    (alone.data_dir / "penstock.toml").write_bytes(content)
    assert_explained(alone.run("status"), "max_pages" if b"max_pages" in content else f"{alone.data_dir}/penstock.toml")


def checked(result: Result) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in result.json()}


def test_doctor_finds_a_healthy_installation_healthy(cli: Cli) -> None:
    working = cli.using(PENSTOCK_PROVIDERS__DOWN__BASE_URL=cli.env["PENSTOCK_PROVIDERS__AI__BASE_URL"])
    result, as_json = working.run_all((["doctor"], ["doctor", "--json"]))
    assert result.code == 0, result.out
    assert "FAIL" not in result.out
    assert "version" in checked(as_json)["redis"]["found"]


def test_doctor_names_each_fault_and_its_remedy(cli: Cli) -> None:
    broken = cli.using(PENSTOCK_REDIS_URL=DEAD_REDIS, PENSTOCK_DATABASE_URL=DEAD_DATABASE)
    result = broken.run("doctor", "--json")
    assert result.code == 1
    checks = checked(result)
    assert {name for name, check in checks.items() if check["result"] == "fail"} == {
        "database",
        "redis",
        "provider down",
    }
    assert "PENSTOCK_DATABASE_URL" in checks["database"]["advice"]
    assert "PENSTOCK_REDIS_URL" in checks["redis"]["advice"]
    assert "base_url" in checks["provider down"]["advice"]
    assert "pass-word" not in result.out


def test_a_misspelt_setting_stops_every_command_with_the_nearest_name(alone: Cli) -> None:
    for variable, value, advice, command in (
        ("PENSTOCK_PROVDER", "typo", "did you mean PENSTOCK_PROVIDER?", ("doctor",)),
        ("PENSTOCK_PROVIDERS__AI__DAILY_SPENDCAP", "5", "__DAILY_SPEND_CAP?", ("convert", "x.pdf")),
        ("PENSTOCK_KNOWLEDGE__CHUNK_TOKNS", "5", "__CHUNK_TOKENS?", ("worker", "-Q", "cpu")),
        ("PENSTOCK_CONFIG", "/nowhere/penstock.toml", "names /nowhere/penstock.toml", ("documents", "list")),
    ):
        assert_explained(alone.using(**{variable: value}).run(*command), variable, advice)


def test_workers_and_beat_say_that_nothing_runs(alone: Cli) -> None:
    for result in alone.run_all((["worker", "-Q", "cpu"], ["beat"], ["flower"])):
        assert_explained(result, "`penstock up` starts one", "PENSTOCK_REDIS_URL")
    shown = alone.run("worker", "--help").out
    assert shown.index("ai: calls") < shown.index("-Q, --queues")
    assert alone.run("--version").out == f"penstock {version('penstock')}\n"
