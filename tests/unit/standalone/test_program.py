"""Where forking is unsafe, the supervisor starts its programs as new processes, which end with it as well."""

import pytest

from pipeline.standalone import program
from pipeline.standalone.program import Program
from tests.support.waiting import wait_until


def test_without_forks_a_program_is_started_and_ends_when_the_supervisor_closes_its_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(program, "FORKS", False)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path_factory.mktemp("data")))
    started = Program("pipeline.standalone.child", ("beat", "--pidfile=", "--quiet")).start("beat")
    assert started.poll() is None
    started.close()
    assert wait_until(lambda: started.poll() is not None, 60, "it has ended")
