"""Captures the configured sources at each tick of a worker with a display, and ingests the frames."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

import structlog
from redis import RedisError

from pipeline.engine.errors import UnitError, UserError
from pipeline.flows.screenshots.frames.capture import Captured, Capturer, missing
from pipeline.flows.screenshots.frames.intake import Intake, ingest, leave_out
from pipeline.flows.screenshots.live_settings import screenshots_in_force
from pipeline.flows.screenshots.queries import CAPTURE_KEY
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_REMEMBERED_S = 86_400


class Captures:
    """The captures of this process, over one connection to its display."""

    def __init__(self, capturer: Callable[[ScreenshotSettings], Capturer] = Capturer) -> None:
        self._make = capturer
        self._capturer: Capturer | None = None
        self._logged = ("", "")
        self._excluded: tuple[list[str], list[str]] = ([], [])
        """The capturer's exclusions; other exclusions need a new capturer."""
        self._lock = Lock()

    def take(self, context: Context, worker: str) -> list[tuple[str, Intake]]:
        """Capture each source once; return (source, intake) of each frame that could be read and was not refused, also
        of excluded and known ones and duplicates.

        Errors of the display and of frames are not raised: `latest_capture` has the display's error and missing
        sources, but no refusals.
        """
        with self._lock:
            sources, error = context.settings.screenshots.capture_sources, ""
            captured: list[Captured] = []
            rules = screenshots_in_force(context)
            if (rules.excluded_apps, rules.excluded_titles) != self._excluded:
                self.close()
                self._excluded = rules.excluded_apps, rules.excluded_titles
            try:
                self._capturer = self._capturer or self._make(rules)
                captured = self._capturer.capture(sources)
            except UserError as problem:
                error = str(problem)
                self.close()
            self._note(context, worker, error, [] if error else missing(sources, captured))
            results = [(capture.frame.source, _take(context, capture)) for capture in captured]
            return [(source, intake) for source, intake in results if intake is not None]

    def close(self) -> None:
        """Close the connection to the display."""
        if self._capturer is not None:
            with suppress(Exception):  # the display may be gone
                self._capturer.close()
        self._capturer = None

    def _note(self, context: Context, worker: str, error: str, absent: Sequence[str]) -> None:
        if (error, str(absent)) != self._logged and (error or absent):
            log.warning("capture.not_all", error=error, missing=absent)
        self._logged = error, str(absent)
        record = {"at": time.time(), "worker": worker, "error": error, "missing": absent}
        with suppress(RedisError):
            context.redis.set(CAPTURE_KEY, json.dumps(record), ex=_REMEMBERED_S)


def _take(context: Context, captured: Captured) -> Intake | None:
    """Ingest a frame; None if the intake raised `UserError` (the ledger has those of bad pictures), or no child process
    could read it now."""
    if not captured.data:
        leave_out(context, captured.frame)
        return Intake(False, reason="excluded")
    try:
        return ingest(context, captured.data, captured.frame)
    except UserError:
        return None
    except UnitError as error:
        log.warning("capture.not_taken", source=captured.frame.source, error=str(error))
        return None
