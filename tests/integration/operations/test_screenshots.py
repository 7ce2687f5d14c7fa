"""Operations on screenshots: scopes, spending, messages after the commit, and dead letters."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from pipeline.engine.accounts import OverCap
from pipeline.engine.errors import UserError
from pipeline.engine.transaction import Dispatch
from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.scopes import FLOW, buffer_of, scope_of
from pipeline.flows.screenshots.scopes import Scope as Work
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.operations import screenshots
from pipeline.operations.caller import Caller
from pipeline.operations.operation import Operation
from pipeline.operations.refusal import Refused
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, Hand, draft, launched  # noqa: F401  # for all tests here

DAY = (BEGIN, BEGIN + timedelta(days=1))
FRAME = Frame("screen:1", BEGIN)
READS: dict[str, tuple[Any, ...]] = {
    "states": ([1],),
    "timeline": (),
    "timeline_page": (5,),
    "show": (1,),
    "nodes_of": (1,),
    "nodes_by_id": ([1],),
    "screenshot": (1,),
    "screenshots": (),
    "screenshots_of": (1,),
    "screenshots_by_id": ([1],),
    "frames_of": ([1],),
    "apps": (),
    "batch": (1,),
    "batches": (),
    "rejections": (),
    "dead_letters": (),
    "dead_letter_counts": (),
    "sources": (),
    "extent": DAY,
    "time_zone": (),
    "status": (),
    "exclusions": (),
    "find_rendition": (1, Kind.SMALL),
    "known_places": ([1], "a"),
    "rendition": (1, Kind.SMALL),
    "picture": (1,),
    "text_lines": (1,),
}
# (the scope, whether it spends, its arguments)
CHANGES: dict[str, tuple[Scope, bool, tuple[Any, ...]]] = {
    "search": (Scope.READ, True, ("a",)),
    "ingest": (Scope.WRITE, True, (b"",)),
    "ingest_upload": (Scope.WRITE, True, (Path("x"), "x", FRAME)),
    "leave_out": (Scope.WRITE, False, (FRAME,)),
    "batch_now": (Scope.WRITE, True, ("screen:1",)),
    "replay": (Scope.WRITE, True, ("batch",)),
    "replay_letters": (Scope.WRITE, True, ()),
    "set_active": (Scope.WRITE, False, ("screen:1", True)),
    "forget": (Scope.WRITE, False, DAY),
    "exclude": (Scope.ADMIN, False, ()),
    "exclude_also": (Scope.ADMIN, False, (["Signal"],)),
    "include_again": (Scope.ADMIN, False, ()),
}
LESSER: dict[Scope, Scope | None] = {Scope.READ: None, Scope.WRITE: Scope.READ, Scope.ADMIN: Scope.WRITE}


class Spent:
    """Quotas of a caller over the spend cap."""

    def check_spending(self, _: str) -> None:
        raise OverCap("enough for today", 60.0)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def hand(context: Context, tmp_path: Path) -> Hand:
    return Hand(context, tmp_path)


def by(context: Context, scope: Scope | None, **more: Any) -> Caller:
    return Caller(context, "key", "ann", scope, has_key=scope is not None, **more)


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value.code


def test_the_tables_name_every_operation() -> None:
    found = {name for name, one in vars(screenshots).items() if isinstance(one, Operation)}
    assert found == {*READS, *CHANGES, "neighbours"}


def test_who_has_a_lesser_scope_or_no_key_is_refused_before_anything_is_done(context: Context) -> None:
    table = CHANGES | {name: (Scope.READ, False, given) for name, given in READS.items()}
    for name, (scope, spends, given) in table.items():
        one: Operation[..., Any] = getattr(screenshots, name)
        assert (one.scope, one.spends) == (scope, spends), name
        lesser = LESSER[scope]
        assert code_of(lambda: one.by(by(context, lesser), *given)) == ("forbidden" if lesser else "unauthorized"), name  # noqa: B023


def test_in_read_only_mode_nothing_is_changed_and_everything_is_read(context: Context, hand: Hand) -> None:
    hand.add()
    api = context.settings.api.model_copy(update={"read_only": True})
    only = replace(context, settings=context.settings.model_copy(update={"api": api}))
    for name, (scope, _, given) in CHANGES.items():
        caller = by(only, Scope.ADMIN, quotas=Spent())
        if scope is not Scope.READ:
            assert code_of(lambda: getattr(screenshots, name).by(caller, *given)) == "read_only", name  # noqa: B023
    assert len(screenshots.screenshots.by(by(only, Scope.READ, quotas=Spent()))) == 1
    only.db.dispose()


def test_who_has_spent_enough_begins_nothing_that_costs_and_may_do_the_rest(context: Context, hand: Hand) -> None:
    hand.add()
    caller = by(context, Scope.ADMIN, quotas=Spent())
    for name in (name for name, (_, spends, _) in CHANGES.items() if spends):
        with pytest.raises(OverCap):
            getattr(screenshots, name).by(caller, *CHANGES[name][2])
    screenshots.leave_out.by(caller, FRAME)
    screenshots.set_active.by(caller, "screen:1", False)
    assert screenshots.exclude_also.by(caller, ["Signal"]).apps == ["Signal"]
    assert screenshots.forget.by(caller, *DAY).screenshots == 1


def give_up(context: Context, *tables: Any) -> None:
    gave_up = {"status": WorkStatus.FAILED_PERMANENT, "error": "no key", "updated_at": context.db.now()}
    with context.db.transaction() as session:
        for table in tables:
            session.execute(update(table).values(**gave_up))


def test_dead_letters_are_tried_again_by_name_of_a_kind_or_all(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    nodes = hand.analyse(hand.batch()[0], [draft("a"), draft("b")])
    give_up(context, BATCHES, NODES)
    names = [f"batch:{batch}", "batch:99", "merge:0", "cat:1", "batch:x", f"batch:{batch}"]
    done = screenshots.replay_letters(names)
    assert (done.matched, done.done) == (5, 1), "each once"
    assert [one.id for one in done.skipped] == names[1:5]
    assert screenshots.replay_letters(kind="vector").done == 0
    assert screenshots.replay_letters(kind="merge").done == len(nodes)
    assert screenshots.replay_letters().done == 1, "the other batch"
    assert screenshots.dead_letters() == []


def test_exclusions_are_added_and_taken_back_beside_the_others(context: Context) -> None:
    screenshots.exclude(apps=["Signal"], titles=["*private*"])
    assert screenshots.exclude_also(["*bank*"]).apps == ["Signal", "*bank*"]
    assert screenshots.include_again(["signal "]).apps == ["*bank*"]
    with pytest.raises(UserError, match="not excluded: Mail"):
        screenshots.include_again(["Mail", "*bank*"])
    found = screenshots.include_again(["Mail", "*bank*"], strict=False)
    assert (found.apps, found.titles) == ([], ["*private*"])


def asked(dispatch: Dispatch) -> list[str]:
    """What was to be launched since this was last asked."""
    return list(dispatch.launches.pop(FLOW, {}))


def test_what_became_due_is_launched_after_the_commit_and_nothing_after_a_refusal(
    context: Context,
    hand: Hand,
    launched: Dispatch,  # noqa: F811
) -> None:
    hand.add()
    assert asked(launched) == []
    assert launched.wakes_s[FLOW] > 0, "when it has waited long enough"
    screenshots.batch_now("screen:1")
    assert asked(launched) == [buffer_of("screen:1", flush=True)]
    batch, _ = hand.batch()
    assert {Work.BATCHES, buffer_of("screen:1")} <= set(asked(launched))
    hand.analyse(batch, [draft("a")])
    assert {scope_of(batch), Work.BATCHES, Work.VECTORS} <= set(asked(launched))
    give_up(context, BATCHES, NODES)
    with pytest.raises(UserError, match="not dead letters: 99"):
        screenshots.replay("batch", [batch, 99])
    assert asked(launched) == [], "rolled back"
    screenshots.replay("batch", [batch])
    assert asked(launched) == [Work.BATCHES, scope_of(batch)]
    screenshots.replay("merge")
    assert asked(launched) == [Work.MERGES]
    screenshots.forget(*DAY)
    assert set(asked(launched)) == {buffer_of("screen:1"), *Work.all()}
