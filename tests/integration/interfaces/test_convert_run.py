"""Refusals of `penstock convert` before it creates a document."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from pipeline import process
from pipeline.engine.errors import UserError
from pipeline.engine.presence import Presence
from pipeline.flows.documents import catalog, submission
from pipeline.flows.documents.submission import Options
from pipeline.interfaces.cli.convert.job import Job
from pipeline.interfaces.cli.convert.options import Wish
from pipeline.interfaces.cli.convert.run import run
from pipeline.interfaces.cli.convert.targets import plan
from pipeline.providers import registry
from pipeline.standalone import stack
from pipeline.standalone.demand import Demand
from pipeline.storage.context import Context


def test_a_provider_unknown_to_the_workers_is_refused_before_the_document_is_created(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"%PDF-1.7")
    held: Any = SimpleNamespace(ensure=bool, trouble=str)
    monkeypatch.setattr(stack, "using_stack", lambda *_: nullcontext(held))
    monkeypatch.setattr(process, "get_context", lambda: context)
    Presence(context.redis).renew("w", 60, facts={"providers": ["openai"]})
    with pytest.raises(UserError, match="does not know the provider 'local'"):
        run([Job(target) for target in plan([file], "", ".md")], Wish(Options()), Demand(context.settings))
    with pytest.raises(UserError, match="does not know the provider 'local'"):
        submission.submit(context, file, Options())
    assert catalog.count_documents(context, catalog.Filter()) == 0
    registry.check_workers(Redis(unix_socket_path=str(tmp_path / "away.sock")), "local")
