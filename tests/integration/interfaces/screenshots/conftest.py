"""The command line in this process. The tests do the work of the workers by hand."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.screenshots.live_settings import CONTROL
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import VlmIndex
from pipeline.flows.screenshots.states import Ask
from pipeline.flows.screenshots.work import analysis, shard
from pipeline.flows.screenshots.work.expansion import ExpandMessage
from pipeline.flows.screenshots.work.message import UsedCall
from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tasks import screenshots
from tests.support.screens import batch_ready
from tests.support.screenshots import desk

ME = Owner("here:1:a", "request-1")
NO_KEY = UnitError("no key", kind=ErrorKind.PERMANENT)
AT = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__AI__MODEL": "m",
        "PENSTOCK_SCREENSHOTS__TIME_ZONE": "Europe/Berlin",
    }


@pytest.fixture
def shots(tmp_path: Path) -> list[Path]:
    """Five pictures, ten seconds apart."""
    folder = tmp_path / "shots"
    folder.mkdir()
    frames = [desk(folder / f"desk{number}.png", f"Invoice {number}", seed=number) for number in range(5)]
    for number, path in enumerate(frames):
        at = (AT + timedelta(seconds=10 * number)).timestamp()
        os.utime(path, (at, at))
    return frames


def penstock(*arguments: str | Path, code: int = 0, stdin: str = "") -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, ["screenshots", *map(str, arguments)], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def shown(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(penstock(*arguments, "--json", code=code).stdout)


def segment(title: str, screens: list[int], summary: str = "", **more: Any) -> dict[str, Any]:
    return {"screen_ids": screens, "event": {"title": title, "summary": summary}, **more}


@pytest.fixture
def analysed(context: Context, shots: list[Path]) -> list[int]:
    """Nodes from the segments of a vision model: an event, knowledge derived from it, and another event."""
    penstock("add", shots[0].parent, "--app", "Firefox", "--title", "Invoices", "--no-wait")
    batch_ready(context)
    batch = screenshots.batches()[0]
    analysis.claim(context, batch.id)
    part = shard.claim(context, batch.id, ME)
    assert part is not None
    segments = [
        segment("Paying bills", [1, 2], "three of March", derived={"knowledge": [{"title": "Ann pays late"}]}),
        segment("修复数据库连接池泄漏", [3, 4, 5]),
    ]
    seen = [{"screenshot_id": batch.shot_ids[0], "ocr_text": "Bill 0 of March"}]
    index = VlmIndex.model_validate({"segments": segments, "screenshots": seen})
    call = UsedCall(Operation.ANALYSE, "ai", "m", "abc123", 2, Ask.FIRST, batch.shot_ids)
    assert shard.settle(context, part, index, call).done
    analysis.settle(context, batch.id)
    with ExpandMessage(context, batch.id, CONTROL, ME, None) as work:
        assert work.run().done
    nodes = [node for hour in screenshots.timeline(derived=True) for node in hour.nodes]
    return sorted(node.id for node in nodes)


def failing(context: Context, error: UnitError) -> None:
    """Fail the latest batch with this error."""
    batch_ready(context)
    batch = screenshots.batches()[0]
    analysis.claim(context, batch.id)
    part = shard.claim(context, batch.id, ME)
    assert part is not None
    shard.fail(context, part, error)
    analysis.settle(context, batch.id)
