"""A searchable PDF neither acts by itself nor on a click, and brings no files along."""

from pathlib import Path
from typing import Any

import pikepdf
import pytest
from pikepdf import Array, Dictionary, Name, String

from pipeline.reading.pdf import searchable
from pipeline.reading.pdf.invisible_text import TextLine
from pipeline.reading.pdf.searchable import PageText
from tests.support.samples import scanned_pdf

MARK = b"HARMFUL-7f3a"
"""In each script, program, file and address that must go."""
WORDS = PageText(1, 595, 842, [TextLine("First of two", 60, 60, 300, 80)])
_NAMES = "JavaScript Launch SubmitForm ImportData GoToR GoToE Thread Rendition Movie Sound RichMediaExecute"
ACTIONS = _NAMES.split()
ANNOTATIONS = ["RichMedia", "Movie", "Sound", "Screen", "3D", "FileAttachment"]


def action(kind: str, **more: Any) -> Dictionary:
    return Dictionary(S=Name(f"/{kind}"), JS=String(MARK), F=String(MARK), **more)


def link(target: Dictionary, **more: Any) -> Dictionary:
    return Dictionary(Type=Name.Annot, Subtype=Name.Link, Rect=Array([0, 0, 9, 9]), A=target, **more)


def address(text: str) -> Dictionary:
    return Dictionary(S=Name.URI, URI=String(text))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = scanned_pdf(tmp_path / "scan.pdf", ["x"])
    with pikepdf.open(path, allow_overwriting_input=True) as pdf:
        page, make = pdf.pages[0].obj, pdf.make_indirect
        attached = make(Dictionary(Type=Name.Filespec, F=String("a"), EF=Dictionary(F=pikepdf.Stream(pdf, MARK * 3))))
        script = make(action("JavaScript", Next=Array([action("Launch"), action("JavaScript")])))
        inside = Dictionary(S=Name.GoTo, D=Array([page, Name.Fit]), Next=script)
        annotations = [
            *(link(make(action(kind))) for kind in ACTIONS),
            *(
                Dictionary(
                    Type=Name.Annot, Subtype=Name(f"/{kind}"), Rect=Array([0, 0, 9, 9]), FS=attached, T=String(MARK)
                )
                for kind in ANNOTATIONS
            ),
            link(address("https://example.org/kept")),
            link(address("mailto:kept@example.org"), AA=Dictionary(E=script)),
            *(link(address(f"{scheme}{MARK.decode()}")) for scheme in ("javascript:", "FILE:///", " data:", "../")),
            link(inside),
            Dictionary(Type=Name.Annot, Subtype=Name.Link, Rect=Array([0, 0, 9, 9]), Dest=Array([page, Name.Fit])),
        ]
        field = Dictionary(
            FT=Name.Tx,
            T=String("kept field"),
            Subtype=Name.Widget,
            Rect=Array([0, 0, 9, 9]),
            AA=Dictionary(K=script),
            A=action("SubmitForm"),
        )
        page.Annots = Array([make(each) for each in (*annotations, field)])
        page.AA, page.AF = Dictionary(O=script), Array([attached])
        page.Resources.Font = Dictionary(AA=Dictionary(Type=Name.Font, BaseFont=Name.KeptFont))
        tree = Dictionary(Names=Array([String("a"), attached]))
        pdf.Root.Names = Dictionary(
            JavaScript=Dictionary(Names=Array([String("a"), script])), EmbeddedFiles=tree, Dests=Dictionary()
        )
        pdf.Root.OpenAction, pdf.Root.AA, pdf.Root.AF = script, Dictionary(WC=script), Array([attached])
        pdf.Root.Collection = Dictionary(D=String(MARK))
        pdf.Root.AcroForm = Dictionary(Fields=Array([page.Annots[-1]]), XFA=pikepdf.Stream(pdf, MARK))
        item = make(Dictionary(Title=String("kept title"), A=script))
        pdf.Root.Outlines = make(Dictionary(First=item, Last=item, Count=1))
        pdf.save(path)
    return path


def active(path: Path) -> set[str]:
    """Return the names of active parts among all objects of a PDF."""
    found = set[str]()

    def walk(node: Any) -> None:
        if isinstance(node, Dictionary | pikepdf.Stream):
            named = {"/AA", "/AF", "/Collection", "/XFA", "/EF", "/JavaScript", "/EmbeddedFiles", "/JS"} - {
                "/AA" if "/BaseFont" in node.get("/AA", {}) else ""
            }
            found.update(named & set(node.keys()))
            found.update({str(node.get("/S", "")), str(node.get("/Subtype", ""))} & kinds)
            if MARK in bytes(node.get("/URI", String(""))):
                found.add("address")
            inner = [node[key] for key in node.keys()]  # noqa: SIM118
        else:
            inner = list(node) if isinstance(node, Array) else []
        for each in inner:
            if isinstance(each, pikepdf.Object) and not each.is_indirect:
                walk(each)

    kinds = {f"/{name}" for name in (*ACTIONS, *ANNOTATIONS)}
    with pikepdf.open(path) as pdf:
        for root in pdf.objects:
            walk(root)
    return found


@pytest.mark.parametrize("texts", [(WORDS,), ()])
def test_nothing_active_and_no_file_is_left(source: Path, texts: tuple[PageText, ...]) -> None:
    assert len(active(source)) > len(ACTIONS) + len(ANNOTATIONS)
    target = source.with_name("searchable.pdf")
    report = searchable.write(source, target, texts, lambda _: None)
    assert report.removed
    assert active(target) == set()
    with pikepdf.open(target) as pdf:
        assert not any(MARK in each.read_raw_bytes() for each in pdf.objects if isinstance(each, pikepdf.Stream))
        unpacked = source.with_name("unpacked.pdf")
        pdf.save(unpacked, object_stream_mode=pikepdf.ObjectStreamMode.disable)
        assert MARK not in unpacked.read_bytes()
        page = pdf.pages[0].obj
        links = [each for each in page.Annots if each.Subtype == "/Link"]
        assert [str(each.A.URI) for each in links if "/URI" in each.get("/A", {})] == [
            "https://example.org/kept",
            "mailto:kept@example.org",
        ]
        assert [each.A.D[0].objgen for each in links if "/D" in each.get("/A", {})] == [page.objgen]
        assert [each.Dest[0].objgen for each in links if "/Dest" in each] == [page.objgen]
        assert [str(each.T) for each in pdf.Root.AcroForm.Fields] == ["kept field"]
        assert str(pdf.Root.Outlines.First.Title) == "kept title"
        assert page.Resources.Font.AA.BaseFont == "/KeptFont"


def test_active_content_stays_if_it_is_wanted(source: Path) -> None:
    target = source.with_name("searchable.pdf")
    report = searchable.write(source, target, [WORDS], lambda _: None, keep_active=True)
    assert not report.removed
    assert active(target) == active(source)
