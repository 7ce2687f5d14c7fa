"""How far a request moves through the code: `python -m benchmarks.moves [--quick] [--only NAME …]`.

A move is a call of a function in another file of `pipeline` or `tasks`, in any thread. A resumed coroutine is not a
call. Each path runs twice and the second run counts, since the first run creates what a process creates once.
Prints a table, and as its last line one JSON object with the keys of `AIMS`.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.suite import Aim, Figures, Part, Suite
from benchmarks.support import ROOT, BenchmarkError, embedded_redis, progress

AIMS = {
    "post_document": Aim("moves of POST /documents", 114),
    "post_document_files": Aim("files that POST /documents passes"),
    "api_retry": Aim("moves of a retry by the API", 86),
    "api_retry_files": Aim("files that a retry by the API passes"),
    "console_retry": Aim("moves of a retry in the console", 87),
    "console_retry_files": Aim("files that a retry in the console passes"),
    "python_submit": Aim("moves of tasks.documents.submit"),
    "python_submit_files": Aim("files that tasks.documents.submit passes"),
}
"""The keys of the last line, in its order. The aims are half of what was traced before operations."""

_RESUMABLE = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR
_FOLDERS = tuple(f"{ROOT / name}/" for name in ("pipeline", "tasks"))


@dataclass
class Moves:
    """Counts moves between files as a profile function."""

    count: int = 0
    files: set[str] = field(default_factory=set)
    _at: dict[int, list[str]] = field(default_factory=dict)
    """By thread: the stack of its files of `pipeline` and `tasks`, outermost first."""
    _started: set[FrameType] = field(default_factory=set)

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event not in {"call", "return"} or not name.startswith(_FOLDERS):
            return
        inside = self._at.setdefault(threading.get_ident(), [""])
        if event == "call":
            self.files.add(name)
            self.count += name != inside[-1] and frame not in self._started
            inside.append(name)
            if frame.f_code.co_flags & _RESUMABLE:
                self._started.add(frame)
        elif len(inside) > 1:
            inside.pop()


@contextmanager
def _traced() -> Iterator[Moves]:
    moves = Moves()
    sys.setprofile(moves.see)
    threading.setprofile(moves.see)
    try:
        yield moves
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def measure() -> Figures:
    """Measure the paths of the documents flow, over the embedded Redis and SQLite, without workers."""
    from starlette.testclient import TestClient

    from pipeline.interfaces.api.app import create_app
    from pipeline.process import get_context
    from pipeline.storage.schema import migrate
    from tasks import documents
    from tests.support.cli import new_pdf

    figures: Figures = {}
    with embedded_redis():
        context = get_context()
        migrate(context.db)
        folder = Path(context.settings.data_dir)

        def client() -> Any:
            # Created inside, so that its threads are traced.
            return TestClient(create_app(context), base_url="http://127.0.0.1", headers={"origin": "http://127.0.0.1"})

        def cancelled() -> str:
            document = documents.submit(new_pdf(folder / "a.pdf"), fresh=True)
            return documents.cancel(document.id).id

        def post(api: Any, _: str) -> Any:
            content = new_pdf(folder / "b.pdf").read_bytes()
            return api.post("/api/v1/documents", files={"file": content}, data={"fresh": "true"})

        def retry(api: Any, document_id: str) -> Any:
            return api.post(f"/api/v1/documents/{document_id}/retry")

        def in_console(api: Any, document_id: str) -> Any:
            return api.post(f"/console/documents/{document_id}/retry", follow_redirects=False)

        for name, ask in (("post_document", post), ("api_retry", retry), ("console_retry", in_console)):
            progress(name)
            first, second = cancelled(), cancelled()
            with _traced() as moves, client() as api:
                _checked(ask(api, first))
                moves.count, moves.files = 0, set()
                _checked(ask(api, second))
                figures |= {name: moves.count, f"{name}_files": len(moves.files)}
        figures |= _python(lambda: documents.submit(new_pdf(folder / "c.pdf"), fresh=True))
    return figures


def _checked(answer: Any) -> None:
    if answer.status_code >= 400:
        raise BenchmarkError(f"{answer.request.url} answered {answer.status_code}: {answer.text[:300]}")


def _python(submit: Callable[[], object]) -> Figures:
    submit()
    with _traced() as moves:
        submit()
    return {"python_submit": moves.count, "python_submit_files": len(moves.files)}


PARTS = {"moves": Part("moves.measure", tuple(AIMS), 240, {})}

SUITE = Suite("benchmarks.moves", "How far a request moves through the code.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
