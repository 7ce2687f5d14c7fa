"""Operations on screenshots: scopes, spending, messages after the commit, and dead letters."""

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import update

from pipeline.engine.accounts import OverCap
from pipeline.engine.errors import UserError
from pipeline.engine.transaction import Dispatch
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.scopes import FLOW, buffer_of, scope_of
from pipeline.flows.screenshots.scopes import Scope as Work
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.operations import screenshots
from pipeline.operations.caller import Caller
from pipeline.operations.quotas import Quotas
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, Hand, draft, launched  # noqa: F401  # for all tests here

DAY = (BEGIN, BEGIN + timedelta(days=1))
FRAME = Frame("screen:1", BEGIN)


class Spent:
    """Quotas of a caller over the spend cap."""

    def check_spending(self, _: str) -> None:
        raise OverCap("enough for today", 60.0)


@pytest.fixture
def hand(context: Context, tmp_path: Path) -> Hand:
    return Hand(context, tmp_path)


def test_a_caller_over_the_cap_may_do_what_is_free(context: Context, hand: Hand) -> None:
    hand.add()
    caller = Caller(context, "key", "ann", has_key=True, quotas=cast("Quotas", Spent()))
    screenshots.leave_out.by(caller, FRAME)
    screenshots.set_active.by(caller, "screen:1", False)
    assert screenshots.exclude_also.by(caller, ["Signal"]).apps == ["Signal"]
    assert screenshots.forget.by(caller, *DAY).screenshots == 1


def give_up(context: Context, *tables: Any) -> None:
    gave_up = {"status": WorkStatus.FAILED_PERMANENT, "error": "no key", "updated_at": context.db.now()}
    with context.db.transaction() as session:
        for table in tables:
            session.execute(update(table).values(**gave_up))


def test_dead_letters_are_replayed_by_name_by_kind_or_all(context: Context, hand: Hand) -> None:
    batch, _ = hand.batch()
    nodes = hand.analyse(hand.batch()[0], [draft("a"), draft("b")])
    give_up(context, BATCHES, NODES)
    names = [f"batch:{batch}", "batch:99", "merge:0", "cat:1", "batch:x", f"batch:{batch}"]
    done = screenshots.replay_letters(names)
    assert (done.matched, done.done) == (5, 1), "each letter once"
    assert [letter.id for letter in done.skipped] == names[1:5]
    assert screenshots.replay_letters(kind="vector").done == 0
    assert screenshots.replay_letters(kind="merge").done == len(nodes)
    assert screenshots.replay_letters().done == 1, "the other batch"
    assert screenshots.dead_letters() == []


def test_adding_and_removing_an_exclusion_keeps_the_others(context: Context) -> None:
    screenshots.exclude(apps=["Signal"], titles=["*private*"])
    assert screenshots.exclude_also(["*bank*"]).apps == ["Signal", "*bank*"]
    assert screenshots.include_again(["signal "]).apps == ["*bank*"]
    with pytest.raises(UserError, match="not excluded: Mail"):
        screenshots.include_again(["Mail", "*bank*"])
    exclusions = screenshots.include_again(["Mail", "*bank*"], strict=False)
    assert (exclusions.apps, exclusions.titles) == ([], ["*private*"])


def take_launches(dispatch: Dispatch) -> list[str]:
    """Return the launches requested since the last call."""
    return list(dispatch.launches.pop(FLOW, {}))


def test_due_work_is_launched_after_a_commit_and_not_after_a_refusal(
    context: Context,
    hand: Hand,
    launched: Dispatch,  # noqa: F811
) -> None:
    hand.add()
    assert take_launches(launched) == []
    assert launched.wakes_s[FLOW] > 0, "the frame's batch is due later"
    screenshots.batch_now("screen:1")
    assert take_launches(launched) == [buffer_of("screen:1", flush=True)]
    batch, _ = hand.batch()
    assert {Work.BATCHES, buffer_of("screen:1")} <= set(take_launches(launched))
    hand.analyse(batch, [draft("a")])
    assert {scope_of(batch), Work.BATCHES, Work.VECTORS} <= set(take_launches(launched))
    give_up(context, BATCHES, NODES)
    with pytest.raises(UserError, match="not dead letters: 99"):
        screenshots.replay("batch", [batch, 99])
    assert take_launches(launched) == [], "the refused replay is rolled back"
    screenshots.replay("batch", [batch])
    assert take_launches(launched) == [Work.BATCHES, scope_of(batch)]
    screenshots.replay("merge")
    assert take_launches(launched) == [Work.MERGES]
    screenshots.forget(*DAY)
    assert set(take_launches(launched)) == {buffer_of("screen:1"), *Work.all()}
