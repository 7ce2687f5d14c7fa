"""Remove from a PDF whatever acts by itself or on a click, and the files in it.

Links to web pages, mail addresses and places in the document stay, as do forms, without their scripts.
"""

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pikepdf
from pikepdf import Array, Dictionary

_ACTION_NAMES = """\
/JavaScript /Launch /SubmitForm /ImportData /GoToR /GoToE /Thread /Rendition /Movie /Sound /RichMediaExecute"""
_ACTIONS = frozenset(_ACTION_NAMES.split())
_ANNOTATIONS = frozenset(["/RichMedia", "/Movie", "/Sound", "/Screen", "/3D", "/FileAttachment"])
_LINK = re.compile(rb"(?:https?://|mailto:|www\.)", re.IGNORECASE)
_CATALOG = ("/AF", "/Collection", "/Requirements", "/URI")
_NAMES = ("/JavaScript", "/EmbeddedFiles", "/Renditions")
_OWNERS = ("/Rect", "/FT", "/Parent", "/Kids", "/Pages")
"""Keys of annotations, fields, pages and the catalog: those that may have `/AA`. A resource may have that name, too."""
_LINKING = ("/A", "/PA", "/OpenAction", "/Next")
_FILES = ("/F", "/UF", "/DOS", "/Mac", "/Unix")
_WATCHED = frozenset({"/S", "/Subtype", "/AA", "/EF", "/RF", "/AF", *_LINKING})
_STEP = 10_000


def remove(pdf: pikepdf.Pdf, tick: Callable[[], object]) -> bool:
    """Remove the active content; return whether there was any. Calls `tick` now and then. The bytes of removed objects
    are gone after saving, which writes only what is referred to. Raises `pikepdf.PdfError`."""
    removed = _of_catalog(pdf)
    for page in pdf.pages:
        annotations = page.obj.get("/Annots")
        if isinstance(annotations, Array):
            kept = [each for each in annotations if not _is_active_annotation(each)]
            if len(kept) < len(annotations):
                page.obj.Annots, removed = Array(kept), True
    for number, node in zip(count(), _nodes(pdf)):
        if number % _STEP == 0:
            tick()
        removed |= _clean(node)
    return removed


def _of_catalog(pdf: pikepdf.Pdf) -> bool:
    removed = _drop(pdf.Root, _CATALOG)
    names, form = pdf.Root.get("/Names"), pdf.Root.get("/AcroForm")
    if isinstance(names, Dictionary):
        removed |= _drop(names, _NAMES)
        if not names.keys():
            del pdf.Root.Names
    return _drop(form, ("/XFA",)) | removed if isinstance(form, Dictionary) else removed


def _nodes(pdf: pikepdf.Pdf) -> Iterator[Any]:
    """Yield each dictionary in the file, also of streams and within other objects."""
    for root in pdf.objects:
        pending: list[Any] = [root]
        while pending:
            node = pending.pop()
            if isinstance(node, Dictionary | pikepdf.Stream):
                yield node
                inner = [node.get(key) for key in node.keys()]  # noqa: SIM118  (streams and dictionaries)
            else:
                inner = list(node) if isinstance(node, Array) else []
            pending += [each for each in inner if isinstance(each, pikepdf.Object) and not each.is_indirect]


def _clean(node: Any) -> bool:
    if _WATCHED.isdisjoint(node.keys()):
        return False
    if _is_active_action(node) or _is_active_annotation(node):
        return _drop(node, tuple(node.keys()))
    unwanted = [key for key in _LINKING if _is_active_action(node.get(key))]
    if any(owner in node for owner in _OWNERS):
        unwanted.append("/AA")
    if any(name in node for name in _FILES):
        unwanted += ["/EF", "/RF"]
    associated = node.get("/AF")
    if isinstance(associated, Dictionary) or (
        isinstance(associated, Array) and all(isinstance(each, Dictionary) for each in associated)
    ):
        unwanted.append("/AF")
    return _drop(node, unwanted)


def _drop(node: Any, keys: Any) -> bool:
    present = [key for key in keys if key in node]
    for key in present:
        del node[key]
    return bool(present)


def _is_active_action(node: Any) -> bool:
    if not isinstance(node, Dictionary):
        return False
    kind = node.get("/S")
    if kind == "/URI":
        address = node.get("/URI")
        return not (isinstance(address, pikepdf.String) and _LINK.match(bytes(address)))
    return isinstance(kind, pikepdf.Name) and str(kind) in _ACTIONS


def _is_active_annotation(node: Any) -> bool:
    kind = node.get("/Subtype") if isinstance(node, Dictionary) else None
    return isinstance(kind, pikepdf.Name) and str(kind) in _ANNOTATIONS
