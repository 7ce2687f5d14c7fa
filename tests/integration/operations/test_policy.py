"""One table for all interfaces: the scope of each operation, its use in read-only mode, and its check of spending."""

import ast
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import update

from pipeline import operations
from pipeline.engine import traces
from pipeline.engine.accounts import OverCap
from pipeline.flows.music.models import BATCHES
from pipeline.flows.music.states import PipelineState
from pipeline.operations import calls, music
from pipeline.operations.caller import Caller
from pipeline.operations.operation import Operation
from pipeline.operations.quotas import Quotas
from pipeline.operations.refusal import Refused
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.support.calls import call_row
from tests.support.music import add_run

ROOT = Path(__file__).resolve().parents[3]
READ, WRITE, ADMIN = "read", "write", "admin"
SEE = "admin, reads"
"""For administrators, also in read-only mode."""
PAID_READ, PAID = "read, spends", "write, spends"
POLICY = {
    "calls": {READ: "list_calls show stats total summary series"},
    "documents": {
        READ: """status several list_documents next_ids explained commonest_error page_picture count_documents
            count_by_status reasons search pages page attempts costs resolve load_beside retries cells page_numbers
            layouts layout docling page_texts archive manifest pictures_folder page_shape figures last_hour
            pages_by_minute find_page_picture searchable_pdf searchable_report doubtful_pages paid_attempts
            result result_file layout_file docling_parts docling_facts result_by_page tables_as_csv embedded_picture
            escalated_to""",
        WRITE: "cancel pause remerge promote delete act",
        PAID: "submit submit_archive submit_upload escalate resume retry retry_failed retry_page",
    },
    "events": {READ: "kept after newest one after_if_possible progress_from progress"},
    "keys": {READ: "own_account", SEE: "list_keys account", ADMIN: "create revoke"},
    "knowledge": {
        READ: """base bases counts chunk_counts items matching item group_id tally standings chunks text original
            has_page_pictures page_picture queue get_status check search asks groups""",
        WRITE: "create_base edit_base delete_base delete cancel dismiss recover act",
        PAID: "add add_uploads reprocess reprocess_failed reprocess_stale",
    },
    "live_settings": {SEE: "list_settings setting", ADMIN: "change_setting reset_setting"},
    "music": {
        READ: "status run runs figures sums show song_by_id songs batches searchable similar estimate",
        PAID_READ: "search",
        WRITE: "sync pause stop",
        PAID: "start resume",
    },
    "nodes": {
        READ: "status nodes node jobs job",
        SEE: "list_tokens dlq",
        ADMIN: "drain revoke free create_token revoke_token cancel_job replay drop",
    },
    "providers": {SEE: "configured", ADMIN: "save test"},
    "queues": {
        READ: "list_queues queue list_breakers breaker breaker_history resume_at",
        ADMIN: "pause resume open_breaker close_breaker",
    },
    "screenshots": {
        READ: """states show nodes_of nodes_by_id screenshot screenshots screenshots_of screenshots_by_id frames_of
            neighbours apps batch batches rejections dead_letters dead_letter_counts sources extent time_zone status
            exclusions find_rendition known_places rendition timeline timeline_page picture text_lines""",
        PAID_READ: "search",
        WRITE: "leave_out set_active forget",
        PAID: "ingest ingest_upload batch_now replay replay_letters",
        ADMIN: "exclude exclude_also include_again",
    },
    "search": {READ: "search"},
    "webhooks": {
        READ: "types endpoint endpoints deliveries delivery delivery_counts attempts",
        WRITE: "test replay replay_range replay_failed call_back",
        ADMIN: "create change exchange_secret remove",
    },
}
"""The operations of each module. `act` and a search of bases also decide by their arguments whether they spend."""
LESSER = {Scope.READ: None, Scope.WRITE: Scope.READ, Scope.ADMIN: Scope.WRITE}


class Spent:
    """Quotas of a caller over the spend cap."""

    def check_spending(self, _: str) -> None:
        raise OverCap("enough for today", 60.0)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def caller(context: Context, scope: Scope | None, *, spent: bool = False) -> Caller:
    quotas = cast("Quotas", Spent()) if spent else Quotas(context)
    return Caller(context, "key", "ann", scope, has_key=scope is not None, quotas=quotas)


def refusal(operation: Operation[..., Any], caller: Caller) -> str | None:
    """Return the code of the refusal; None if the caller may run the operation."""
    try:
        operation.by(caller)
    except (Refused, OverCap) as error:
        return error.code
    return None


def calls_as_owner(room: str) -> Iterator[tuple[str, Operation[..., Any]]]:
    """Yield (place, operation) of each call without a caller in a package of the interfaces."""
    for path in sorted((ROOT / "pipeline" / "interfaces" / room).rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = vars(import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)))
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name)):
                    called = names.get(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                    called = getattr(names.get(module), name, None)
                case _:
                    continue
            if isinstance(called, Operation):
                yield f"{path.name}:{node.lineno} {name}", called


@pytest.mark.parametrize("room", ["rest", "compatibility", "console", "mcp"])
def test_interfaces_change_nothing_and_spend_nothing_as_the_owner(room: str) -> None:
    """REST and the other projects' APIs also read as their caller: operations hide previews from other keys."""
    reads_as_owner = room in {"console", "mcp"}
    assert [
        place
        for place, operation in calls_as_owner(room)
        if not (reads_as_owner and operation.scope is Scope.READ and not operation.spends)
    ] == []


def operations_by_module() -> Iterator[tuple[str, dict[str, Operation[..., Any]]]]:
    for module in pkgutil.iter_modules(operations.__path__):
        names = vars(import_module(f"pipeline.operations.{module.name}"))
        if known := {name: value for name, value in names.items() if isinstance(value, Operation)}:
            yield module.name, known


def test_the_table_names_every_operation() -> None:
    tabled = {module: {name for names in table.values() for name in names.split()} for module, table in POLICY.items()}
    assert {module: set(known) for module, known in operations_by_module()} == tabled


@pytest.mark.parametrize("module", POLICY)
def test_an_operation_checks_scope_read_only_mode_and_spending(
    module: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = context.settings.api.model_copy(update={"read_only": True})
    only = replace(context, settings=context.settings.model_copy(update={"api": api}))
    for policy, names in POLICY[module].items():
        scope, _, rest = policy.partition(", ")
        needed, changes = Scope(scope), policy not in {READ, SEE, PAID_READ}
        for name in names.split():
            operation: Operation[..., Any] = getattr(import_module(f"pipeline.operations.{module}"), name)
            monkeypatch.setattr(operation, "_function", lambda _: None)
            lesser = LESSER[needed]
            assert refusal(operation, caller(context, None)) == "unauthorized", name
            assert refusal(operation, caller(context, lesser)) == ("forbidden" if lesser else "unauthorized"), name
            assert refusal(operation, caller(context, needed)) is None, name
            assert refusal(operation, caller(only, Scope.ADMIN)) == ("read_only" if changes else None), name
            over_cap = caller(context, needed, spent=True)
            assert refusal(operation, over_cap) == ("quota" if rest == "spends" else None), name


def test_texts_of_models_are_for_administrators(context: Context) -> None:
    row = call_row("openai", context.db.now(), preview="a poem", call_id="one")
    add_run(context, PipelineState.RUNNING, songs=1)
    context.db.run(lambda session: traces.record(session, row))
    context.db.run(lambda session: session.execute(update(BATCHES).values(reply="{broken", error="not JSON")))
    for scope, preview, reply in ((Scope.WRITE, None, None), (Scope.ADMIN, "a poem", "{broken")):
        [call], [batch] = calls.list_calls.by(caller(context, scope)), music.batches.by(caller(context, scope))
        assert calls.show.by(caller(context, scope), call.id) == call
        assert (call.preview, batch.reply, batch.error) == (preview, reply, "not JSON")
