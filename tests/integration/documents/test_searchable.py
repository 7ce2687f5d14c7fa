"""The searchable PDF of a document: made once from the submitted file and the result's words."""

from dataclasses import replace

import pikepdf
import pypdfium2
import pytest

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, queries, searchable
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.work.page import Attempt
from pipeline.providers.protocols import Answer
from pipeline.storage.context import Context
from tests.support.documents import Worker, insert_document, set_row, write_output
from tests.support.samples import scanned_pdf, text_pdf

LINES = [["Invoiee number", 60.0, 60.0, 300.0, 80.0, 0, [0, 450, 500, 1000]]]


def converted(
    context: Context, provider: str, text: str, layout: dict[str, object] | None, *, scan: bool = True
) -> str:
    """Return the id of a document of one page with this text and layout, whose file is a scan or has a text layer."""
    document_id = insert_document(context, pages=[PageStatus.PENDING], provider=provider)
    worker = Worker(context, document_id, queue="cpu" if provider == "local" else f"vision.{provider}")
    (unit,) = worker.claim(1)
    worker.settle(Attempt(unit, Answer(text, provider, layout=layout)))
    path = files.source_path(context.settings, document_id, "pdf")
    path.parent.mkdir(parents=True, exist_ok=True)
    scanned_pdf(path, ["x"]) if scan else text_pdf(path, [["Its own text"]])
    output = write_output(context, document_id)
    set_row(context, document_id, merged_path=output, type="pdf", status=int(DocumentStatus.COMPLETED))
    return document_id


def words(path: object) -> list[str]:
    with pypdfium2.PdfDocument(path) as document:
        found: str = document[0].get_textpage().get_text_range()
        return found.split()


def test_recognised_lines_are_kept_for_it_and_shown_in_no_result(context: Context) -> None:
    layout = {"width": 595, "height": 842, "unit": "pt", "blocks": [], "confidence": 0.9, "lines": LINES, "lean": 0.5}
    document_id = converted(context, "local", "Invoiee number", layout)
    path = searchable.searchable_pdf(context, document_id)
    assert words(path) == ["Invoiee", "number"]
    assert searchable.report(context, document_id)["pages"] == [1]
    assert searchable.searchable_pdf(context, document_id) == path
    assert not {"lines", "lean"} & queries.layout_json(context, document_id)["pages"][0].keys()


def test_a_models_words_get_the_places_of_local_recognition(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Reader:
        def convert(self, page: object) -> Answer:
            seen.append(page)
            facts = {"width": 595, "height": 842, "unit": "pt", "confidence": 0.8, "lines": LINES, "blocks": []}
            return Answer("Invoiee number", "local", layout=facts)

    monkeypatch.setattr("pipeline.providers.local._LocalReader", lambda _: Reader())
    document_id = converted(context, "openai", "# Invoice *number*", None)
    path = searchable.searchable_pdf(context, document_id)
    assert words(path) == ["Invoice", "number"]
    path.unlink()
    searchable.searchable_pdf(context, document_id)
    assert len(seen) == 1  # the cache keeps the lines of a page


def test_a_page_with_a_text_layer_gets_no_other(context: Context) -> None:
    for provider, layout in (
        ("openai", None),
        ("local", {"width": 595, "height": 842, "unit": "pt", "blocks": []}),
    ):
        document_id = converted(context, provider, "Its own text", layout, scan=False)
        path = searchable.searchable_pdf(context, document_id)
        assert words(path) == ["Its", "own", "text"]
        assert path.read_bytes() == files.source_path(context.settings, document_id, "pdf").read_bytes()


def test_the_setting_for_active_content_applies_at_once(context: Context) -> None:
    document_id = converted(context, "openai", "Its own text", None, scan=False)
    source = files.source_path(context.settings, document_id, "pdf")
    with pikepdf.open(source, allow_overwriting_input=True) as pdf:
        pdf.Root.OpenAction = pikepdf.Dictionary(S=pikepdf.Name.JavaScript, JS=pikepdf.String("app.alert(1)"))
        pdf.save(source)
    without = searchable.searchable_pdf(context, document_id)
    assert searchable.report(context, document_id)["removed"]
    assert words(without) == ["Its", "own", "text"]
    documents = context.settings.documents.model_copy(update={"keep_active_content": True})
    keeping = replace(context, settings=context.settings.model_copy(update={"documents": documents}))
    assert searchable.searchable_pdf(keeping, document_id).read_bytes() == source.read_bytes() != without.read_bytes()


def test_there_is_none_without_the_file_a_result_or_pages(context: Context) -> None:
    document_id = converted(context, "local", "text", {"width": 595, "height": 842, "lines": LINES})
    files.source_path(context.settings, document_id, "pdf").unlink()
    with pytest.raises(UserError, match="not stored any more"):
        searchable.searchable_pdf(context, document_id)
    set_row(context, document_id, type="docx")
    with pytest.raises(UserError, match="neither a PDF nor a picture"):
        searchable.searchable_pdf(context, document_id)
    set_row(context, document_id, type="pdf", merged_path=None)
    with pytest.raises(UserError):
        searchable.searchable_pdf(context, document_id)
