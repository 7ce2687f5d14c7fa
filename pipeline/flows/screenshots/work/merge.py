"""Merges a node into an older node of its thread and kind.

Rules: docs/sources/screenshots.md#merges.

The thread's row is the lock, and workers claim at most one merge of a (thread, kind) at a time, which serialises merges
into a target. The target's version shows whether its text has changed since the claim.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.orm import Session, aliased

from pipeline.engine import traces
from pipeline.engine import work as units
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.kept_answers import Subject
from pipeline.engine.settled import Settled
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Outcome
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import EDGES, LINKS, MENTIONS, NODES, PROVENANCE, THREADS, Node
from pipeline.flows.screenshots.graph.nodes import Content
from pipeline.flows.screenshots.live_settings import CONTROL
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.rules import prompts
from pipeline.flows.screenshots.rules.node_merge import MergeNode, by_model, by_rules, read_merge
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import MERGE_SCHEMA
from pipeline.flows.screenshots.scopes import FLOW, Scope
from pipeline.flows.screenshots.states import NODE, Ask, NodeKind, Origin, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import batch, retry
from pipeline.flows.screenshots.work.message import Message, UsedCall, provider_and_model
from pipeline.providers import registry
from pipeline.providers.replies import BadReply, clean
from pipeline.providers.traced_call import NO_GATE
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
CLAIM_TRIES = 3
QUANTUM_S = 1.0
"""Seconds for which a message without calls continues with further merges."""


@dataclass(frozen=True)
class MergeUnit:
    """A claimed node and its target. `target_id` None: the node is the first of its kind in its thread."""

    id: int
    attempts: int
    claim_id: str
    content: Content
    target_id: int | None
    target_version: int
    target: Content | None
    row: Any = field(repr=False)
    target_row: Any = field(default=None, repr=False)

    def nodes(self) -> tuple[MergeNode, MergeNode]:
        """Return (the target, the node) as arguments of a merge."""
        assert self.target is not None, "the node has no target"
        return _as_node(self.target_row, self.target), _as_node(self.row, self.content)


def _as_node(row: Any, content: Content) -> MergeNode:
    return MergeNode(
        row.id,
        NodeKind(row.kind),
        row.thread_id or "",
        content.title,
        content.summary,
        content.keywords,
        content.entities,
        content.importance,
        content.confidence,
        event_time_ms=int(row.event_time.timestamp() * 1000),
        merged_from_ids=tuple(json.loads(row.merged_from_ids)),
    )


def claim(context: Context, owner: Owner, *, alone: bool = False, newest: bool = False) -> MergeUnit | None:
    """Claim the oldest waiting node whose thread and kind has no merge under way; None if no node is free.

    `alone`: only nodes without a target, which need no model. `newest`: take the thread and kind of the newest waiting
    node, and its oldest waiting node, because merges join texts in the order of time. A redelivered message first gives
    back the claims of its earlier delivery.
    """
    _free_earlier(context, owner)
    other = aliased(Node)
    same = (other.thread_id == NODES.c.thread_id, other.kind == NODES.c.kind)
    under_way = select(other.id).where(*same, other.status == WorkStatus.RUNNING).exists()
    targets = (other.status == WorkStatus.SUCCEEDED, other.merged_into_id.is_(None), other.id != NODES.c.id)
    which = [~select(other.id).where(*same, *targets).exists()] if alone else []

    def act(tx: Tx) -> MergeUnit | None:
        candidate = _next(tx, newest, WORK.due(context.db.now()), ~under_way, *which)
        thread = lock_thread(tx, candidate.thread_id) if candidate else None
        if candidate is None or thread is None:
            return None
        # Check again: another process may have claimed in this thread while we waited for its lock.
        for row in units.claim(tx, WORK, thread, owner, NODES.c.id == candidate.id, ~under_way):
            target, fields = _target(tx, row), (row.id, row.attempts, row.claim_id, nodes.content_of(row))
            if target is None:
                return MergeUnit(*fields, None, 0, None, row)
            return MergeUnit(*fields, target.id, target.version, nodes.content_of(target), row, target)
        return None

    for _ in range(CLAIM_TRIES):
        unit = context.db.run(act)
        if unit is not None or alone or not waiting(context):
            break  # otherwise another process claimed our candidate: try the next
    return unit


def _next(session: Session, newest: bool, *free: ColumnElement[bool]) -> Any | None:
    """Return the oldest of these `free` nodes, or with `newest` the oldest in the thread and kind of the newest; None
    without one. Rule: docs/sources/screenshots.md#scan."""
    query = select(NODES.c.id, NODES.c.thread_id, NODES.c.kind).where(*free).limit(1)
    oldest = query.order_by(NODES.c.event_time, NODES.c.id)
    if not newest:
        return session.execute(oldest).one_or_none()
    newest_node = session.execute(query.order_by(NODES.c.event_time.desc(), NODES.c.id.desc())).one_or_none()
    if newest_node is None or newest_node.thread_id is None:
        return newest_node
    same = (NODES.c.thread_id == newest_node.thread_id, NODES.c.kind == newest_node.kind)
    return session.execute(oldest.where(*same)).one_or_none()


def _free_earlier(context: Context, owner: Owner) -> None:
    earlier = and_(NODES.c.request_id == owner.request_id, WORK.working)
    with context.db.read() as session:
        threads = session.execute(select(NODES.c.thread_id).where(earlier).distinct()).scalars().all()
    for thread_id in threads:

        def act(tx: Tx, thread_id: str | None = thread_id) -> None:
            if thread := lock_thread(tx, thread_id):
                units.give_back_earlier(tx, WORK, thread, owner)

        context.db.run(act)


def waiting(context: Context) -> int:
    """Count the nodes that wait for their merge, up to 1000. `claim` may return None if all wait behind others."""
    with context.db.read() as session:
        return len(session.execute(select(NODES.c.id).where(WORK.due(context.db.now())).limit(1000)).all())


def lock_thread(session: Session, thread_id: str | None) -> Any | None:
    """Lock a thread's merges until the transaction ends; None if it is deleted. Nodes without a thread have no targets,
    so they need no lock."""
    if thread_id is None:
        return units.Scope(None)
    return session.execute(select(THREADS.c.id).where(THREADS.c.id == thread_id).with_for_update()).one_or_none()


WORK = batch.kind("merge", NODES, NODE, NODES.c.thread_id, lock_thread, (NODES.c.event_time, NODES.c.id))


def _target(session: Session, row: Any) -> Any | None:
    if row.thread_id is None:
        return None
    possible = and_(NODES.c.status == WorkStatus.SUCCEEDED, NODES.c.merged_into_id.is_(None), NODES.c.id != row.id)
    query = select(NODES).where(NODES.c.thread_id == row.thread_id, NODES.c.kind == row.kind, possible)
    return session.execute(query.order_by(NODES.c.event_time.desc(), NODES.c.id.desc()).limit(1)).one_or_none()


def settle(
    context: Context,
    unit: MergeUnit,
    merged: Content | None = None,
    call: UsedCall | None = None,
    trace: dict[str, Any] | None = None,
) -> Settled:
    """Commit a merge in one transaction. `merged`: the target's new content; None if the node has no target, so that it
    only stops waiting.

    `call`: the call of the merge; None if rules merged. Returns the state `pending` if the target has changed or is
    deleted: the node waits for its merge again, without counting an attempt; no state if the claim is lost.
    """

    def act(tx: Tx) -> Settled:
        # Lock the batch, which provenance names, before the thread: all transactions lock in this order.
        row = select(BATCHES.c.id).where(BATCHES.c.id == unit.row.batch_id)
        tx.execute(row.with_for_update(read=True, key_share=True)).all()
        thread = lock_thread(tx, unit.row.thread_id)
        held = and_(NODES.c.id == unit.id, NODES.c.claim_id == unit.claim_id)
        node = tx.execute(select(NODES).where(held).with_for_update()).one_or_none()
        target = _target(tx, node) if node is not None else None
        same = (target.id if target else None, target.version if target else 0) == (unit.target_id, unit.target_version)
        # Drop the trace's texts if the nodes have changed: they may contain deleted texts.
        traces.record(tx, trace, deleted=node is None or not same)
        if node is None:
            return Settled()
        if not same:
            back = {"attempts": unit.attempts - 1}
            units.settle(tx, WORK, thread, Outcome(unit, event=WorkEvent.GIVE_BACK, values=back))
            return Settled(status=WorkStatus.PENDING)
        values: dict[str, Any] = {}
        if target is not None:
            assert merged is not None, "a target needs a merged text"
            _absorb(tx, node, target, merged, call)
            values = {"merged_into_id": target.id}
        units.settle(tx, WORK, thread, Outcome(unit, values=values))
        tx.launch(FLOW, Scope.VECTORS)
        return Settled(1, status=WorkStatus.SUCCEEDED)

    return context.db.run(act)


def _absorb(tx: Tx, node: Any, target: Any, merged: Content, call: UsedCall | None) -> None:
    """Write the merged content to the target, and move the node's frames, mentions and edges there."""
    absorbed = {*json.loads(target.merged_from_ids), *json.loads(node.merged_from_ids), node.id}
    values = {
        **nodes.columns(merged),
        "merged_from_ids": json.dumps(sorted(absorbed - {target.id})),
        "version": target.version + 1,
        "updated_at": tx.now,
        "event_time": max(node.event_time, target.event_time),
    }
    unchanged = and_(NODES.c.id == target.id, NODES.c.version == target.version)
    tx.execute(update(NODES).where(unchanged).values(**values))
    # The old vector stays until the new one is stored, so that search always finds the node.
    nodes.replace_vector(tx, target.id, node.id)
    nodes.keep_entities(tx, [merged.entities])
    nodes.mention(tx, target.id, merged.entities)
    tx.execute(update(LINKS).where(LINKS.c.node_id == node.id).values(node_id=target.id))
    tx.execute(delete(MENTIONS).where(MENTIONS.c.node_id == node.id))
    touching = or_(EDGES.c.from_id == node.id, EDGES.c.to_id == node.id)
    for edge in tx.execute(select(EDGES).where(touching)).all():
        ends = [target.id if end == node.id else end for end in (edge.from_id, edge.to_id)]
        if ends[0] != ends[1]:
            nodes.add_edge(tx, ends[0], ends[1], edge.type)
    tx.execute(delete(EDGES).where(touching))
    row = {
        "node_id": target.id,
        "act": "merged",
        "from_node_id": node.id,
        "batch_id": node.batch_id,
        "method": Origin.MODEL if call else Origin.RULES,
        "model": call.model[:120] if call else "",
        "created_at": tx.now,
    }
    insert_if_absent(tx, PROVENANCE, row, "node_id", "act", "from_node_id")
    if call is not None:
        call.record(tx, node_id=target.id)
    nodes.unindex(tx, [node.id])
    nodes.reindex(tx, [target.id])


def fail(context: Context, unit: MergeUnit, error: UnitError, trace: dict[str, Any] | None = None) -> Settled:
    """Settle a failed merge: the node waits for a retry, is released without counting an attempt, or becomes a dead
    letter, which stays unmerged."""

    def act(tx: Tx) -> Settled:
        thread = lock_thread(tx, unit.row.thread_id)
        traces.record(tx, trace)
        return retry.settled(tx, units.settle(tx, WORK, thread, Outcome(unit, error)), error)

    return context.db.run(act)


def trace_unit(node_id: int) -> str:
    """Return the name of a node's merge in traces and accounts, below the node's batch."""
    return f"node {node_id}"


class MergeMessage(Message):
    """A message that merges nodes by the text model, or by rules without one."""

    def run(self, *, alone: bool = False, turn: int = 0) -> Settled:
        """Do one merge by the model, or as many by rules as fit the quantum.

        `alone`: only nodes without a target. `turn`: even turns take the oldest node, odd turns the newest thread and
        kind.
        """
        started, done = time.monotonic(), 0
        while unit := claim(self._context, self._owner, alone=alone, newest=(turn + done) % 2 == 1):
            settled = self._merge(unit)
            done += settled.done
            if self._queue != CONTROL or settled.retry_in_s is not None or time.monotonic() - started > QUANTUM_S:
                return Settled(done, retry_in_s=settled.retry_in_s, status=settled.status)
        return Settled(done)

    def _merge(self, unit: MergeUnit) -> Settled:
        try:
            if unit.target is None:
                return settle(self._context, unit, trace=self._tracer.trace)
            merged, used = self._merged(unit)
            settled = settle(self._context, unit, nodes.content_of_node(merged), used, self._tracer.trace)
        except Exception as error:  # noqa: BLE001  # a dead letter, not a claim that stays
            return fail(self._context, unit, retry.as_unit_error(error), self._tracer.trace_of(error))
        self._tracer.trace = None
        if settled.done:
            log.info("node.merged", node=unit.id, target=unit.target_id, model=used.model if used else "")
        return settled

    def _merged(self, unit: MergeUnit) -> tuple[MergeNode, UsedCall | None]:
        """Return (the merged node, its call). Raises refusals of the gate; after other errors, the rules merge."""
        target, node = unit.nodes()
        if self._queue == CONTROL:
            return by_rules(target, node), None
        try:
            return self._ask(unit, target, node)
        except Exception as raised:  # noqa: BLE001  # the rules merge instead
            error = retry.as_unit_error(raised)
            log.warning("merge.failed", node=unit.id, target=unit.target_id, kind=str(error.kind), error=str(error))
            if error.kind in retry.RELEASED:
                raise error from None
        # The model only adds to the rules' result: docs/sources/screenshots.md#merges.
        return by_rules(target, node), None

    def _ask(self, unit: MergeUnit, target: MergeNode, node: MergeNode) -> tuple[MergeNode, UsedCall | None]:
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        settings = self._context.settings
        text = registry.text(settings, *provider_and_model(self._context, self._queue, "text"))
        prompt = prompts.merge_prompt(target, node)
        subject = Subject(FLOW, str(unit.row.batch_id or ""), trace_unit(unit.id), unit.claim_id)
        batch.outlast(self._context, WORK, [unit], text.name)
        answer = self._tracer.call(
            subject,
            "text",
            Operation.MERGE.value,
            text.name,
            text.model,
            [prompts.MERGE_SYSTEM, prompt],
            lambda: text.complete(prompt, system=prompts.MERGE_SYSTEM, json_schema=MERGE_SCHEMA),
        )
        try:
            reply = read_merge(clean(answer.text))
        except BadReply as bad:
            log.warning("merge.reply_unusable", node=unit.id, problem=str(bad))
            return by_rules(target, node), None
        both = LINKS.c.node_id.in_([target.id, node.id])
        with self._context.db.read() as session:
            query = select(LINKS.c.shot_id).where(both).distinct().order_by(LINKS.c.shot_id)
            shot_ids = list(session.execute(query).scalars())
        digest = prompts.prompt_hash(prompts.MERGE_SYSTEM, prompt)
        used = UsedCall(
            Operation.MERGE, text.name, answer.model or text.model, digest, unit.attempts, Ask.FIRST, shot_ids
        )
        return by_model(target, node, reply), used
