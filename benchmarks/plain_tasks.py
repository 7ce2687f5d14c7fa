"""The alternative without Penstock: a task that makes a call, and retries with back-off after a 429."""

import json
import os
import urllib.error
import urllib.request

from celery import Celery

app = Celery("plain", broker=os.environ.get("PLAIN_REDIS"), backend=os.environ.get("PLAIN_REDIS"))
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    task_default_queue="plain",
    worker_hijack_root_logger=False,
)


class RateLimitedError(Exception):
    """The provider answered 429."""


@app.task(
    autoretry_for=(RateLimitedError,), retry_backoff=True, retry_backoff_max=60, retry_jitter=True, max_retries=50
)
def call(number: int) -> int:
    """Make one call."""
    body = {"model": "m", "messages": [{"role": "user", "content": str(number)}]}
    request = urllib.request.Request(
        f"{os.environ['PLAIN_PROVIDER']}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code == 429:
            raise RateLimitedError from error
        raise
    return number
