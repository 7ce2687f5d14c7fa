"""What one message does about merges: by the text model, or by rules where there is none. Source 000, 1.7 and 3.3."""

import time
from dataclasses import dataclass

import structlog
from sqlalchemy import select

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import LINKS
from pipeline.flows.screenshots.routes import CONTROL, writer_of
from pipeline.flows.screenshots.rules import prompts
from pipeline.flows.screenshots.rules.node_merge import MergeNode, by_model, by_rules, read_merge
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import MERGE_SCHEMA
from pipeline.flows.screenshots.states import Ask
from pipeline.flows.screenshots.work import merge
from pipeline.flows.screenshots.work.batch import UsedCall
from pipeline.flows.screenshots.work.merge import Merged, MergeUnit
from pipeline.flows.screenshots.work.message import MessageWork
from pipeline.flows.screenshots.work.outcome import RELEASED, as_unit_error
from pipeline.providers import registry
from pipeline.providers.replies import BadReply, clean
from pipeline.providers.traced_call import NO_GATE

log = structlog.get_logger(__name__)
QUANTUM_S = 1.0
"""How long a message that asks nobody goes on with one merge after the other."""


@dataclass(frozen=True)
class Joined:
    """What a message did: merges that were committed, and how long until one that failed is due."""

    done: int = 0
    retry_in_s: float | None = None


class MergeWork(MessageWork):
    """One message's work on merges."""

    def run(self, *, alone: bool = False) -> Joined:
        """One merge by the model; or, where nobody is asked, as many as fit the quantum.

        `alone`: only those of nodes that have nothing to be merged with, whoever merges the others.
        """
        begun, total = time.monotonic(), 0
        while unit := merge.claim(self._context, self._owner, alone=alone):
            joined = self._settled(unit)
            total += joined.done
            if self._queue != CONTROL or joined.retry_in_s is not None or time.monotonic() - begun > QUANTUM_S:
                return Joined(total, joined.retry_in_s)
        return Joined(total)

    def _settled(self, unit: MergeUnit) -> Joined:
        try:
            return self._merge(unit)
        except Exception as error:  # noqa: BLE001  # a dead letter, not a claim that stays
            failed = merge.fail(self._context, unit, as_unit_error(error), self._tracer.trace)
            return Joined(0, failed.retry_in_s)

    def _merge(self, unit: MergeUnit) -> Joined:
        if unit.target is None:
            return self._commit(unit, None, None)
        target, node = unit.nodes()
        try:
            merged, used = self._thought_out(unit, target, node)
        except Exception as raised:  # noqa: BLE001  # whatever it is, the row says it
            error = as_unit_error(raised)
            log.warning("merge.failed", node=unit.id, target=unit.target_id, kind=str(error.kind), error=str(error))
            if error.kind in RELEASED:
                failed = merge.fail(self._context, unit, error, self._tracer.trace)
                return Joined(0, failed.retry_in_s)
            # The model only adds to what the rules do: source 000, section 3.3.
            merged, used = by_rules(target, node), None
        return self._commit(unit, merged, used)

    def _thought_out(self, unit: MergeUnit, target: MergeNode, node: MergeNode) -> tuple[MergeNode, UsedCall | None]:
        if self._queue == CONTROL:
            return by_rules(target, node), None
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        settings = self._context.settings
        provider, model = writer_of(settings, self._queue)
        writer = registry.text(settings, provider, model)
        prompt = prompts.merge_prompt(target, node)
        answer = self._tracer.call(
            "text", Operation.MERGE.value, writer.name, writer.model,
            lambda: writer.complete(prompt, system=prompts.MERGE_SYSTEM, json_schema=MERGE_SCHEMA),
        )  # fmt: skip
        try:
            reply = read_merge(clean(answer.text))
        except BadReply as bad:
            log.warning("merge.reply_unusable", node=unit.id, problem=str(bad))
            return by_rules(target, node), None
        digest = prompts.prompt_hash(prompts.MERGE_SYSTEM, prompt)
        used = UsedCall(
            Operation.MERGE, writer.name, answer.model or writer.model, digest, unit.attempts, Ask.FIRST,
            self._shots(target.id, node.id),
        )  # fmt: skip
        return by_model(target, node, reply), used

    def _shots(self, *node_ids: int) -> list[int]:
        query = select(LINKS.c.shot_id).where(LINKS.c.node_id.in_(node_ids)).distinct().order_by(LINKS.c.shot_id)
        with self._context.db.read() as session:
            return list(session.execute(query).scalars())

    def _commit(self, unit: MergeUnit, merged: MergeNode | None, used: UsedCall | None) -> Joined:
        content = nodes.said_by(merged) if merged is not None else None
        committed = merge.commit(self._context, unit, content, used, self._tracer.trace)
        self._tracer.trace = None
        if merged is not None and committed is Merged.DONE:
            log.info("node.merged", node=unit.id, target=unit.target_id, model=used.model if used else "")
        return Joined(int(committed is Merged.DONE))
