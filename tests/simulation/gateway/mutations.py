"""The safeguards of the gateway's state that `make mutations` takes away. See tests/simulation/mutations.py."""

from typing import Any

from tests.simulation.mutation import Mutation

_FINISH = "(attempt ~= ARGV[1] or node ~= ARGV[2] or not has(ARGV[5], state))"
_LEAVE = "redis.call('ZREM', KEYS[2], entry.member)\nredis.call('HDEL', KEYS[3], ARGV[1])"
_STEP = "if attempt ~= ARGV[1] or node ~= ARGV[2] then return 0 end"


async def _not_done(*_: Any, **__: Any) -> bool:
    return False


MUTATIONS = (
    Mutation(
        "attempt of a result",
        "results of attempts that are over count",
        scripts={_FINISH: "(node ~= ARGV[2] or not has(ARGV[5], state))"},
    ),
    Mutation(
        "node of a result",
        "a result counts, whichever node sends it",
        scripts={_FINISH: "(attempt ~= ARGV[1] or not has(ARGV[5], state))"},
    ),
    Mutation(
        "attempt of a message",
        "messages of attempts that are over count",
        scripts={_STEP: "if node ~= ARGV[2] then return 0 end"},
    ),
    Mutation(
        "node of a message",
        "a message about a job counts, whichever node sends it",
        scripts={_STEP: "if attempt ~= ARGV[1] then return 0 end"},
    ),
    Mutation(
        "attempt of a dispatch",
        "an attempt that is over is dispatched",
        scripts={"if attempt ~= ARGV[1] then return 0 end": ""},
    ),
    Mutation(
        "once finished",
        "a job finishes once for each result",
        scripts={
            "if by then": "if false then",
            "if not has(ARGV[3], state) then return {{}, {}, 0} end": "",
            _FINISH: "(attempt ~= ARGV[1] or node ~= ARGV[2])",
        },
    ),
    Mutation(
        "finish again",
        "a result whose answer was lost counts as late",
        scripts={"if by ~= author then return {{}, {}, 0} end": "if true then return {{}, {}, 0} end"},
    ),
    Mutation(
        "most attempts",
        "a job may have any number of attempts",
        scripts={"elseif over >= tonumber(most) then return {} end": "end"},
    ),
    Mutation("binding", "a repeated request creates another job", scripts={"if bound then": "if false then"}),
    Mutation(
        "lock",
        "two instances create the job of a request",
        scripts={"if holder and holder ~= ARGV[1] then return 0 end": ""},
    ),
    Mutation(
        "slots",
        "a node gets one job more than it has slots",
        scripts={
            "redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2])": "redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[2])"
        },
    ),
    Mutation(
        "release",
        "the slot of a job that is done stays taken",
        names={"pipeline.nodes.state.slots.Slots.release": _not_done},
    ),
    Mutation(
        "line",
        "a job that was given to a node stays in line",
        scripts={_LEAVE: "if true then return 1 end"},
    ),
    Mutation(
        "sessions here",
        "an instance does not tell its own sessions of a result that went past them",
        names={
            "pipeline.nodes.gateway.delivery.Delivery.stored_result": _not_done,
            "pipeline.nodes.gateway.intake.Intake.answer_lost": _not_done,
        },
    ),
    Mutation(
        "state machine",
        "a job that waits for a node can be RUNNING",
        scripts={"if has(ARGV[3], state) then\n  redis.call": "if state ~= 'FINISHED' then\n  redis.call"},
    ),
)
