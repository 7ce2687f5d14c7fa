"""Where a node comes from: node → call → model, prompt, attempt → frames."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.flows.screenshots.states import Ask, Origin


class Operation(StrEnum):
    """What a call was for, as its trace names it.

    Rule: docs/sources/screenshots.md#traces; text recognition is not a call here.
    """

    ANALYSE = "vlm_analyze_shard"
    EXPAND = "text_expand"
    MERGE = "text_merge"
    RULES = "rules"


@dataclass(frozen=True)
class Call:
    """A call whose result was used. `id`: of its row; `screenshot_ids`: what it was shown or told about."""

    id: int
    operation: Operation
    provider: str
    model: str
    prompt_hash: str
    attempt: int
    screenshot_ids: tuple[int, ...]
    ask: Ask = Ask.FIRST


def calls_behind(made_by: Origin, screenshot_ids: Iterable[int], calls: Sequence[Call]) -> list[Call]:
    """The calls that a node rests on, in their order: those that saw its frames, and the expansion if the text model
    made the node. `calls`: those of the node's batch, and of the merges into the node."""
    shown = set(screenshot_ids)
    found = [call for call in calls if shown & set(call.screenshot_ids)]
    return [call for call in found if call.operation is not Operation.EXPAND or made_by is Origin.MODEL]
