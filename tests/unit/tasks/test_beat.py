"""Beat's ticks under wrong clocks."""

import time
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
from celery.beat import Scheduler
from celery.worker.request import Request
from kombu.message import Message

from tasks.app import app

HOUR = timedelta(hours=1)


def ticks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record beat's messages: the name of the task and its message."""
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Scheduler, "producer", MagicMock())  # the real producer would connect

    def send(_: object, name: str, message: Any, **__: object) -> None:
        sent.append((name, message))

    monkeypatch.setattr(app.amqp, "send_task_message", send)
    return sent


def due(beat: Scheduler) -> None:
    """Make beat send all tasks that it considers due."""
    while beat.tick() == 0:
        pass


@pytest.mark.parametrize("off", [-HOUR, HOUR])
def test_a_tick_counts_although_beats_clock_is_an_hour_off(off: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = ticks(monkeypatch)
    with monkeypatch.context() as on_beats_host:
        real = app.now
        on_beats_host.setattr(app, "now", lambda: real() + off)
        due(Scheduler(app=app))
    assert {name for name, _ in sent} == {entry["task"] for entry in app.conf.beat_schedule.values()}
    app.loader.import_default_modules()
    for name, (headers, properties, body, _) in sent:
        message = Message(
            body,
            headers=headers,
            properties=properties,
            delivery_info={},
            content_type="application/json",
            content_encoding="utf-8",
        )
        request = Request(message, app=app, headers=headers, body=body, decoded=True, task=app.tasks[name])
        assert not request.maybe_expire(), f"a worker discards {name}"


def test_a_clock_that_is_set_back_keeps_no_tick_away(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = ticks(monkeypatch)
    beat = Scheduler(app=app)
    due(beat)
    sent.clear()
    real, steady = app.now, time.monotonic
    monkeypatch.setattr(app, "now", lambda: real() - HOUR)
    monkeypatch.setattr(time, "monotonic", lambda: steady() + app.conf.beat_schedule["sweep"]["schedule"].seconds)
    due(beat)
    assert [name for name, _ in sent] == ["maintenance.sweep"]
