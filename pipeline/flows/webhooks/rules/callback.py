"""Callbacks: the messages about one task that docling-serve sends to the address in a request.

A callback follows the documents of its task: a message about their number, two about each that comes to rest, and one
about the end of the task.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

RESULTS = {"completed": "success", "failed": "failure", "cancelled": "failure", "deleted": "failure"}
"""docling-serve's word for the states at rest, besides `partial_failed`."""
PARTIAL = "partial_failed"


@dataclass(frozen=True)
class Callback:
    """A task and its documents. `headers`: to send with each message."""

    task_id: str
    documents: dict[str, str]
    """Names by id."""
    allow_partial: bool
    """Whether a document with some failed pages has a result."""
    headers: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    """docling-serve's words by id, of the documents that came to rest."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The callback that `text` describes."""
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def has_ended(self) -> bool:
        """Whether all documents came to rest."""
        return len(self.results) == len(self.documents)

    def begun(self) -> str:
        """The first message, as JSON."""
        return self._message("set_num_docs", num_docs=len(self.documents))

    def ended(self, document_id: str, status: str, facts: Mapping[str, Any]) -> tuple[Self, list[str]]:
        """Return (the callback once this document has this status, the messages about it, as JSON). There are none
        before the document rests, a second time, or for a document of another task. `facts`: those of its event."""
        known = {**RESULTS, PARTIAL: "partial_success" if self.allow_partial else "failure"}
        if document_id not in self.documents or document_id in self.results or status not in known:
            return self, []
        result, source = known[status], self.documents[document_id]
        after = replace(self, results={**self.results, document_id: result})
        error = str(facts.get("error") or status) if result == "failure" else None
        counted = list(after.results.values())
        completed = {"source": source, "status": result, "num_pages": facts.get("pages") or None, "error": error}
        messages = [
            self._message(
                "document_completed",
                document=completed,
                total_processed=len(counted),
                total_docs=len(self.documents),
            ),
            self._message(
                "update_processed",
                num_processed=len(counted),
                num_succeeded=len(counted) - counted.count("failure"),
                num_partially_succeeded=counted.count("partial_success"),
                num_failed=counted.count("failure"),
                docs=[{"source": source, "status": result, "error": error}],
            ),
        ]
        if after.has_ended:
            outcome = "failure" if counted.count("failure") == len(counted) else "success"
            messages.append(self._message("task_completed", task_status=outcome, failure=None))
        return after, messages

    def _message(self, kind: str, **facts: Any) -> str:
        return json.dumps({"task_id": self.task_id, "progress": {"kind": kind, **facts}}, ensure_ascii=False)
