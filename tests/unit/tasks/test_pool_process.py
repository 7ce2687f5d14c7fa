"""The connections of a worker's process after Celery's signal that a pool process starts."""

import socket

from celery.signals import worker_process_init

import tasks.app  # noqa: F401  # connects what listens


def test_a_worker_that_is_its_own_pool_keeps_its_connections() -> None:
    near, far = socket.socketpair()
    with near, far:
        worker_process_init.send(sender=None)
        near.send(b"still here")
        assert far.recv(10) == b"still here"
