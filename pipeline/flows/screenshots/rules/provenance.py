"""The provenance of nodes: node → call → model, prompt, attempt → frames."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.flows.screenshots.states import Ask, Origin


class Operation(StrEnum):
    """The operation of a call, as its trace names it.

    Rule: docs/sources/screenshots.md#traces; text recognition is not a call here.
    """

    ANALYSE = "vlm_analyze_shard"
    EXPAND = "text_expand"
    MERGE = "text_merge"
    RULES = "rules"


@dataclass(frozen=True)
class Call:
    """A call whose result nodes rest on. `id`: of its row; `screenshot_ids`: those that its prompt is about."""

    id: int
    operation: Operation
    provider: str
    model: str
    prompt_hash: str
    attempt: int
    screenshot_ids: tuple[int, ...]
    ask: Ask = Ask.FIRST


def calls_behind(made_by: Origin, screenshot_ids: Iterable[int], calls: Sequence[Call]) -> list[Call]:
    """Return the calls that a node rests on, in order: all calls about its frames, but the expansion only if
    the text model made the node. `calls`: the calls of the node's batch and of the merges into the node."""
    shown = set(screenshot_ids)
    related = [call for call in calls if shown & set(call.screenshot_ids)]
    return [call for call in related if call.operation is not Operation.EXPAND or made_by is Origin.MODEL]
