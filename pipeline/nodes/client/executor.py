"""Executors, which do a node's jobs, and the outcome of an attempt: a result, or an error that is safe to send."""

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from pipeline.engine.errors import UnitError
from pipeline.nodes.protocol import Attachment, Capability, JobAssign, JobError, NodeResult, Offer, encode

log = structlog.get_logger(__name__)

_MAX_WAIT_S = 86_400
_FAILED = JobError(code="failed", message="the node failed at this job", kind="transient")

Key = tuple[str, int]
"""A job's id and the number of its attempt."""
Parts = list[tuple[Attachment, bytes]]


class Executor(Protocol):
    """Does jobs. Several threads call it at once."""

    offers: tuple[Offer, ...]

    def run(
        self,
        capability: Capability,
        model: str,
        body: dict[str, Any],
        attachments: Sequence[tuple[Attachment, bytes]],
        partial: Callable[[str], None],
    ) -> tuple[dict[str, Any], Parts]:
        """Do one job, and return its result and attachments. Called in a thread for each job. An empty `model`: the
        executor chooses.

        Calls `partial` with the next piece of the generated text, if it streams any. Raises `UnitError`.
        """


@dataclass(frozen=True)
class Finished:
    """The outcome of an attempt: an encoded `job_result`, and its binary frames."""

    key: Key
    head: bytes
    parts: tuple[bytes, ...] = ()

    @property
    def attachment_bytes(self) -> int:
        return sum(map(len, self.parts))


def failed(key: Key, error: JobError) -> Finished:
    """Return the outcome of an attempt that ended in `error`."""
    return Finished(key, encode(NodeResult(job_id=key[0], attempt=key[1], error=error)).encode())


def execute(executor: Executor, job: JobAssign, parts: Sequence[bytes], partial: Callable[[str], None]) -> Finished:
    """Do a job, and return its result as an encoded message. Never raises: an error becomes a message with the error.

    Sends the texts of `UnitError`s alone. Logs any other error without its text, which may quote the job.
    """
    key = (job.job_id, job.attempt)
    try:
        attachments = list(zip(job.attachments, parts, strict=True))
        result, attached = executor.run(job.capability, job.model, job.body, attachments, partial)
        message = NodeResult(
            job_id=job.job_id, attempt=job.attempt, result=result, attachments=tuple(about for about, _ in attached)
        )
        return Finished(key, encode(message).encode(), tuple(data for _, data in attached))
    except UnitError as error:
        return failed(key, job_error(error))
    except Exception as error:  # noqa: BLE001  # no error of an executor may end the node
        last = traceback.extract_tb(error.__traceback__)[-1]
        log.error(  # noqa: TRY400  # a traceback contains the message
            "node.job_failed", job=key[0], attempt=key[1], error=type(error).__name__, at=f"{last.name}:{last.lineno}"
        )
        return failed(key, _FAILED)


def job_error(error: UnitError) -> JobError:
    """Convert an error to the form that the protocol sends."""
    wait_s = error.retry_after_s
    if wait_s is not None:
        wait_s = min(max(wait_s, 0.0), _MAX_WAIT_S) if math.isfinite(wait_s) else None
    message = str(error).encode("utf-8", "replace").decode()
    return JobError(
        code=error.code[:64] or "failed", message=message[:2000], kind=error.kind.value, retry_after_s=wait_s
    )
