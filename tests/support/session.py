"""A session of tests: its signals, the order of its tests, and a check for processes left behind.

With pytest-xdist every worker is such a session, with a Redis and a PostgreSQL of its own.
"""

import gc
import os
import signal
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest
import structlog
from hypothesis import settings as hypothesis_settings

from pipeline.reading.sandbox.child import close_idle
from pipeline.reading.sandbox.child_process import end_server
from tests.support import named_redis
from tests.support.leftovers import leaked_processes, remove_session_folder
from tests.support.preloaded import close_preloaded
from tests.support.statements import share_compiled

LONGEST_FIRST = ("faults", "browser", "e2e", "simulation", "integration", "unit")
"""Folders by the length of their tests. The last tests must be short, or one worker waits for another."""
SHARED = ("shared_stack", "wheel", "arena", "browser")
"""Costly fixtures of a session: one worker of pytest-xdist runs all tests that use one of them."""
_LEAKED = pytest.StashKey[list[str]]()


def pytest_report_header() -> str:
    return named_redis.described()


def pytest_configure(config: pytest.Config) -> None:
    named_redis.check()
    if named_redis.NAMED and config.getoption("numprocesses", None):
        raise pytest.UsageError("tests on a named Redis share it: run them one after another, without -n")
    config.stash[_LEAKED] = []
    share_compiled()
    # Without this, structlog draws a traceback with the contents of all variables, which takes up to a minute.
    shown = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], shown])
    # A busy machine must not fail tests: count examples instead of time.
    hypothesis_settings.register_profile("patient", deadline=None)
    hypothesis_settings.load_profile("patient")
    # An end by `kill` or `timeout` is an orderly one: fixtures stop the processes that they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell's background processes ignore Ctrl-C, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Suspend garbage collection: imported modules and tests stay, so freeze them for later collections."""
    gc.disable()
    if "PYTEST_XDIST_WORKER" in os.environ:
        _share_rewriting(session.config)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _share_rewriting(config: pytest.Config) -> None:
    """Import the test modules, each worker from another one on, and read the others' rewritten asserts from the cache.

    In a new clone, each worker would otherwise rewrite the asserts of all of them: 15 seconds of a processor.
    """
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    files = [file for path in named for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    first = len(files) * int(os.environ["PYTEST_XDIST_WORKER"][2:]) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in files[first:] + files[:first]:
        module = file.relative_to(config.rootpath).with_suffix("")
        if module.parts[:2] != ("tests", "clients"):
            with suppress(Exception, pytest.skip.Exception):  # collection reports it
                import_module(".".join(module.parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In parallel, run long tests first; else keep the order, so that simple faults show early."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    if item.get_closest_marker("xdist_group"):
        return -1  # minutes, of one worker alone
    folder = item.nodeid.split("/")[1]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST and not item.get_closest_marker("slow") else 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Fail the session if tests left processes behind."""
    close_preloaded()
    close_idle()
    end_server()
    leaked = leaked_processes() if _runs_tests(session.config) else []
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["leaked"] = leaked
    session.config.stash[_LEAKED] += leaked
    if session.config.stash[_LEAKED] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    remove_session_folder()
    return (yield)


def _runs_tests(config: pytest.Config) -> bool:
    """Return whether this process runs tests. The parent of pytest-xdist's workers only distributes them."""
    return not config.getoption("numprocesses", None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Record the processes that a worker of pytest-xdist left behind."""
    node.config.stash[_LEAKED] += getattr(node, "workeroutput", {}).get("leaked", [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if leaked := config.stash[_LEAKED]:
        terminalreporter.section("processes that tests left behind")
        for line in leaked:
            terminalreporter.line(line)
