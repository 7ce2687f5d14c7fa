"""A lane of the provider `other` without Celery that dies between the answer and its transaction.

`python -m tests.faults.documents.doomed`, with the document's id in `DOCUMENT`.
"""

import os
import signal
from typing import Any

from pipeline.engine.claims import Owner
from pipeline.flows.documents.work import page
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.process import get_context
from pipeline.providers import gates
from pipeline.storage.context import Context

QUEUE = "vision.other"


def lane(context: Context, document_id: str, process: str) -> None:
    """Handle one message of the provider's queue."""
    gates.sync(context)
    guarded = gates.guarded_call(context, QUEUE, process)
    PageLane(context, document_id, QUEUE, ["other"], Owner(process, process), guarded=guarded).run(quantum_s=0)


def _deadly(settle: Any) -> Any:
    def call(tx: Any, document_id: str, providers: Any, attempts: Any, *more: Any, **options: Any) -> Any:
        if attempts:
            os.kill(os.getpid(), signal.SIGKILL)
        return settle(tx, document_id, providers, attempts, *more, **options)

    return call


if __name__ == "__main__":
    page.settle_and_claim = _deadly(page.settle_and_claim)
    lane(get_context(), os.environ["DOCUMENT"], "dead:1:a")
