"""What a node does its jobs with, and how an attempt at one ends: in a result or in an error that is safe to send."""

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
"""A job's id and the number of the attempt."""
Parts = list[tuple[Attachment, bytes]]


class Executor(Protocol):
    """Does jobs. Called from several threads at once."""

    offers: tuple[Offer, ...]

    def run(
        self,
        capability: Capability,
        model: str,
        body: dict[str, Any],
        attachments: Sequence[tuple[Attachment, bytes]],
        partial: Callable[[str], None],
    ) -> tuple[dict[str, Any], Parts]:
        """Do one job: its result and the attachments of that. `model` may be empty: the executor's own choice.

        May hand pieces of a text to `partial` as they come. Raises `UnitError`."""


@dataclass(frozen=True)
class Finished:
    """How an attempt ended: a `job_result`, encoded, and its binary frames."""

    key: Key
    head: bytes
    parts: tuple[bytes, ...] = ()

    @property
    def attachment_bytes(self) -> int:
        return sum(map(len, self.parts))


def failed(key: Key, error: JobError) -> Finished:
    """The attempt ended in `error`."""
    return Finished(key, encode(NodeResult(job_id=key[0], attempt=key[1], error=error)).encode())


def execute(executor: Executor, job: JobAssign, parts: Sequence[bytes], partial: Callable[[str], None]) -> Finished:
    """Do a job. Never raises: what goes wrong is how it ended. What was no `UnitError` is logged without its message,
    which may quote the job, and not sent at all."""
    key = (job.job_id, job.attempt)
    try:
        given = list(zip(job.attachments, parts, strict=True))
        result, made = executor.run(job.capability, job.model, job.body, given, partial)
        message = NodeResult(
            job_id=job.job_id, attempt=job.attempt, result=result, attachments=tuple(about for about, _ in made)
        )
        return Finished(key, encode(message).encode(), tuple(data for _, data in made))
    except UnitError as error:
        return failed(key, job_error(error))
    except Exception as error:  # noqa: BLE001  # the executor's: whatever it is, the node lives on
        last = traceback.extract_tb(error.__traceback__)[-1]
        log.error(  # noqa: TRY400  # the traceback ends in the message
            "node.job_failed", job=key[0], attempt=key[1], error=type(error).__name__, at=f"{last.name}:{last.lineno}"
        )
        return failed(key, _FAILED)


def job_error(error: UnitError) -> JobError:
    """The error as it is sent."""
    wait_s = error.retry_after_s
    if wait_s is not None:
        wait_s = min(max(wait_s, 0.0), _MAX_WAIT_S) if math.isfinite(wait_s) else None
    message = str(error).encode("utf-8", "replace").decode()
    return JobError(
        code=error.code[:64] or "failed", message=message[:2000], kind=error.kind.value, retry_after_s=wait_s
    )
