"""`make mutations`: removes one safeguard at a time, and counts the seeds until the simulation fails.

Numbers are those of defects that the kernel had: see the list in docs/explanation/simulation.md.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any
from unittest.mock import patch

from sqlalchemy import select

from pipeline.engine import accounts, claims, deliveries, traces, work
from pipeline.engine.breaker import Breaker
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.presence import Presence
from pipeline.flows.flow import Flow
from tests.simulation import fleet, flow, session
from tests.simulation.database import SimulatedDatabase
from tests.simulation.gateway.mutations import MUTATIONS as GATEWAY_MUTATIONS
from tests.simulation.gateway.session import Session as GatewaySession
from tests.simulation.mutation import Mutation
from tests.simulation.provider import Provider
from tests.simulation.session import Session
from tests.simulation.world import Faults

MOST_SEEDS = 2000
_LOST = "if delivered(queue, c) > tonumber(a) then return false end"
_STAMPS = "w.stamps = w.source and redis.call('ZRANGE', w.source, 0, -1, 'WITHSCORES') or {}"
_OTHER = "if is_taken and other and other ~= ARGV[4] and other ~= ARGV[6] then return other end"


def _unfenced(original: Callable[..., bool]) -> Callable[..., bool]:
    def move(session: Any, work: Any, event: Any, rows: list[dict[str, Any]]) -> bool:
        table = work.table
        query = select(table.c.id, table.c.claim_id).where(table.c.id.in_([row["id"] for row in rows]))
        held = dict(session.execute(query).all())
        return original(session, work, event, [{**row, "claim_id": held[row["id"]] or "none"} for row in rows])

    return move


def _in_two(original: Callable[..., bool]) -> Callable[..., bool]:
    def move(session: Any, *args: Any) -> bool:
        moved = original(session, *args)
        for command in ("COMMIT", "BEGIN IMMEDIATE"):
            session.connection().exec_driver_sql(command)
        return moved

    return move


def _uncounted(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: original(*args, **{**options, "counts": False})


def _keyless(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda session, calls: original(session, [{**call, "call_id": None} for call in calls])


def _unless_unavailable(original: Callable[..., float]) -> Callable[..., float]:
    def failed(breaker: Breaker, error: UnitError, *args: Any) -> float:
        return 0.0 if error.kind is ErrorKind.UNAVAILABLE else original(breaker, error, *args)

    return failed


def _unreserved(original: Callable[..., accounts.Balance]) -> Callable[..., accounts.Balance]:
    return lambda *args: replace(original(*args), reserved=0.0)


def _all_left_behind(session: Any, table: Any, owner: Any) -> list[str]:
    owned = (table.c.request_id == owner.request_id, table.c.claim_id.is_not(None))
    return list(session.execute(select(table.c.claim_id).where(*owned)).scalars())


def _to_the_tail(channel: Any, message: Any) -> None:
    broker = channel.qos
    delivery = broker.deliveries.get(message.delivery_tag)
    touched = delivery.message.touched
    broker.restore(delivery, head=False)
    delivery.message.touched = touched


def _missed_once(presence: Presence, processes: Any, *_: float) -> set[str]:
    alive = presence._redis.zrange("penstock:leases:{presence}", 0, -1)
    return set(processes) - set(alive) - set(presence._redis.zrange("penstock:leases:{presence:pools}", 0, -1))


@contextmanager
def _always_first(_delivery: str) -> Iterator[bool]:
    yield True


def _oldest_only(context: Any, _shut: Any) -> Iterator[str]:
    return islice(flow._runnable(context, ()), 1)


def _nothing(*_: Any, **__: Any) -> Any:
    return ()


MUTATIONS = (
    Mutation(
        "fence",
        "a result counts whoever holds its unit",
        faults=Faults(freeze=0.6),
        rare=True,
        names={
            "pipeline.engine.work._move": _unfenced(work._move),
            "pipeline.engine.work.held": lambda session, work, outcomes: {outcome.unit.id for outcome in outcomes},
        },
    ),
    Mutation(
        "marks",
        "1: whatever waits counts as lost",
        scripts={_LOST: "if delivered(queue, c) >= 0 then return false end"},
    ),
    Mutation(
        "timer",
        "1: what waits for three seconds counts as lost",
        scripts={_LOST: "if now - b > 3000 then return false end"},
    ),
    Mutation(
        "closed gate",
        "1: messages are sent to a closed gate",
        names={"tests.simulation.session._Gates.closed_because": lambda *_: ""},
    ),
    Mutation(
        "starving",
        "2: the sweep looks at the oldest alone, be its gate closed or not",
        names={"flow.FLOW.runnable": _oldest_only},
    ),
    Mutation(
        "rest",
        "what a chain's lost message would have sent is not sent from the rows",
        names={"tasks.flow.FlowTasks.launch_all": lambda *_: 0},
    ),
    Mutation(
        "failover",
        "after a failover, a place at work stays taken as long as its process lives",
        faults=Faults(fail_over_every_s=5),
        scripts={"d == history()": "true"},
    ),
    Mutation("turnover", "3: nothing counts as lost while its queue has messages", scripts={_LOST: ""}),
    Mutation(
        "refill",
        "4: an emptied Redis forgets the calls on record",
        names={"tests.simulation.provider.Provider.on_record": lambda *_: {}},
    ),
    Mutation(
        "siblings",
        "5: a message's second delivery frees what the first one's living process holds",
        scripts={_OTHER: ""},
        names={"pipeline.engine.claims.left_behind": _all_left_behind},
    ),
    Mutation("polling", "8: a refused worker asks again at once", names={"tasks.consumer.LONGEST_LEAVE_S": 0.005}),
    Mutation(
        "order",
        "8: a refused message goes to the tail",
        faults=Faults(),
        names={"tasks.celery_internals.consumer.give_back": _to_the_tail},
    ),
    Mutation(
        "order of two",
        "messages refused at the same time swap",
        scripts={"if not headers or not headers.redelivered or": "if true or"},
    ),
    Mutation(
        "clocks",
        "13: rows have the time of hosts",
        names={"tests.simulation.database.SimulatedDatabase.now": lambda db: db.world.host_time()},
    ),
    Mutation("windows", "13: a changed configuration forgets usage", scripts={_STAMPS: "w.stamps = {}"}),
    Mutation(
        "commit",
        "13: a claim whose commit had no answer is forgotten",
        names={
            "pipeline.engine.claims.Tries.take_over": lambda *_: [],
            "pipeline.engine.claims.Tries.made": lambda *_: True,
        },
    ),
    Mutation(
        "booking",
        "a call whose record was committed without an answer is booked again",
        names={"pipeline.engine.traces.record_all": _keyless(traces.record_all)},
    ),
    Mutation(
        "reservations",
        "what is reserved does not count when more is admitted",
        names={"pipeline.engine.accounts.balance": _unreserved(accounts.balance)},
    ),
    Mutation(
        "charges",
        "a call whose record is written is on nobody's account",
        names={"pipeline.engine.accounts.charge": _nothing},
    ),
    Mutation(
        "one transaction",
        "a result is committed before what follows from it for the scope",
        faults=Faults(kill=0.005, inside=True),
        names={"pipeline.engine.work._move": _in_two(work._move)},
    ),
    Mutation(
        "sending",
        "a call is not stamped anew when it is sent",
        faults=Faults(pause=0.1, cut_every_s=2),
        rare=True,
        names={"pipeline.engine.gate.Gate.sent": lambda gate, holder, _made: gate._run("gate_sent", holder, 0, 0, 0)},
    ),
    Mutation(
        "poison",
        "a unit that is refused each time is released for ever",
        faults=Faults(poison=True),
        names={"pipeline.engine.retry.MAX_RELEASES": 10**9},
    ),
    Mutation(
        "shutdown",
        "13: a worker that ends gives nothing back",
        names={"pipeline.flows.flow.Flow.release_all": _nothing},
    ),
    Mutation(
        "attempts",
        "a lost worker's attempt does not count",
        names={"pipeline.engine.work.give_back": _uncounted(work.give_back)},
    ),
    Mutation("places", "two messages may work in one place", scripts={_OTHER: ""}),
    Mutation("concurrency", "a gate does not count calls at once", scripts={"if slots then": "if false then"}),
    Mutation(
        "presence",
        "a process that is absent once counts as dead",
        names={"pipeline.engine.presence.Presence.missed_twice": _missed_once},
    ),
    Mutation(
        "lost workers",
        "what a dead process holds is given back by nobody",
        names={"pipeline.flows.flow.Flow.free_lost": lambda *_: 0},
    ),
    Mutation(
        "leaving",
        "a place that could not be left stays taken",
        faults=Faults(redis_error=0.03),
        names={"tasks.flow._leave_later": _nothing},
    ),
    Mutation(
        "twice at once",
        "threads of a process may work on one message",
        names={"pipeline.engine.deliveries.first": _always_first},
    ),
    Mutation(
        "admission",
        "a message too many frees its sibling's place at the provider",
        names={"tasks.flow._give_back_admission": lambda guarded, *_: guarded.leave()},
    ),
    Mutation(
        "again",
        "a message that comes again passes those that wait",
        faults=Faults(cut_every_s=1, freeze=0.1),
        shape={
            "workers": 1,
            "slots": 12,
            "scopes": 8,
            "units": 5,
            "places": 4,
            "times": 1,
            "concurrency": 8,
            "faults_s": 25,
        },
        rare=True,
        scripts={"and not repeated then": "then"},
    ),
    Mutation(
        "outage",
        "a failure that is the provider's own uses an attempt",
        faults=Faults(outage=True),
        names={"pipeline.engine.errors.Health.blames_unit": lambda *_: True},
    ),
    Mutation(
        "wrong key",
        "a provider that refuses the key is asked again and again",
        faults=Faults(wrong_key=True),
        names={"pipeline.engine.breaker.Breaker.failed": _unless_unavailable(Breaker.failed)},
    ),
    Mutation(
        "neighbours",
        "a unit that was released comes before its neighbours",
        faults=Faults(poison=True),
        names={"flow.PAGES.order": (flow.PAGES.table.c.number,)},
    ),
    Mutation(
        "slots of the dead",
        "what dead workers have at a provider stays theirs until their calls would be over",
        faults=Faults(kill_worker_every_s=5),
        names={"pipeline.engine.gate.Gate.finish_all": _nothing},
    ),
)


@contextmanager
def mutated(mutation: Mutation, *, soon: bool) -> Iterator[Session | GatewaySession]:
    """Open a session without the mutation's safeguard."""
    kind = GatewaySession if mutation in GATEWAY_MUTATIONS else Session
    with kind() as opened, ExitStack() as stack:
        opened.scripts.changed.update(mutation.scripts)
        if (soon or mutation.rare) and (faults := mutation.faults):
            opened.faults = lambda _: faults
        if isinstance(opened, Session) and mutation.shape:
            opened.shape = lambda world: replace(session.shape_of(world), **mutation.shape)
        for name, instead in mutation.names.items():
            module, _, attribute = name.rpartition(".")
            if frozen := {"flow.FLOW": flow.FLOW, "flow.PAGES": flow.PAGES}.get(module):
                stack.callback(object.__setattr__, frozen, attribute, getattr(frozen, attribute))
                object.__setattr__(frozen, attribute, instead)
            else:
                stack.enter_context(patch(name, instead))
        yield opened
        missing = set(mutation.scripts) - opened.scripts.replaced
        assert not missing, f"{mutation.name}: no script says {missing}"


def seeds_until_found(
    mutation: Mutation, first: int = 0, most: int = MOST_SEEDS, *, soon: bool = False
) -> tuple[int, str]:
    """(how many seeds it took, what was noticed); (0, "") if nothing was. `soon`: with the faults for tests."""
    with mutated(mutation, soon=soon) as opened:
        for count, seed in enumerate(range(first, first + most), 1):
            failure = opened.run(seed).failure
            if failure is not None:
                return count, f"{type(failure).__name__}: {failure}"
    return 0, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutations")
    parser.add_argument("--only", default="", help="the name of one")
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    missed = 0
    for mutation in (*MUTATIONS, *GATEWAY_MUTATIONS):
        if options.only in {"", mutation.name}:
            count, violation = seeds_until_found(mutation, options.first)
            missed += not count
            print(
                f"{mutation.name:<16} {count or 'not':>5} seeds  {mutation.without}\n{'':22} {violation[:150]}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["Flow", "Provider", "SimulatedDatabase", "claims", "deliveries", "fleet", "session"]
