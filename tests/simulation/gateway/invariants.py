"""Invariants after each command, and of the empty state at the end."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.nodes.job import DONE, LEGAL, WITH_NODE, JobEvent, JobState
from tests.simulation.gateway.loop import Host

if TYPE_CHECKING:
    from tests.simulation.gateway.fleet import Fleet

_EVENTS = {
    "job_dispatch": (JobEvent.DISPATCH,),
    "job_step": (JobEvent.ACK, JobEvent.START, JobEvent.PARTIAL),
    "job_finish": (JobEvent.FINISH,),
    "job_retry": (JobEvent.RETRY,),
    "job_release": (JobEvent.RELEASE,),
}
_JOBS = {*_EVENTS, "job_create", "job_adopt"}
_SLOTS = {"slot_reserve", "slot_renew"}
_REQUESTS = {"request_bind", "request_take_over", "request_forget"}
_KEPT = ("outcome", "error_code", "error", "finished_ms", "finished_by", "attempt", "node_id")
Row = dict[str, str]


class Observer:
    """Checks every command against the earlier state."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet, self._world, self._server = fleet, fleet.world, fleet.server
        self.jobs: dict[str, Row] = {}
        self.results: dict[str, list[bytes]] = {}
        """The results of all jobs that ever finished. A job that Redis lost may be created and finish again."""
        self._held: Counter[str] = Counter()
        self._free: Counter[str] = Counter()
        self._most: dict[str, int] = {}
        self._locks: dict[str, tuple[str, int]] = {}
        """By request: the home that may create its job, and until when."""
        self._reserved_late: set[tuple[Any, str]] = set()
        """By key of reservations, the jobs that had a slot reserved when they were done: by a late copy of which no
        instance knows, so that upkeep gives it back, or by an instance held up since it saw the job in line, whose
        home gives it back."""
        self._bound: set[str] = set()
        """Jobs that requests were bound to since Redis was last emptied."""
        self.given: dict[tuple[str, int], str] = {}
        """By job and attempt: the node that got it."""
        self._anew: set[str] = set()
        """Jobs that were created again after Redis lost them. Their attempts start from 1."""
        self.finished = self.retried = self.adopted = 0

    def emptied(self) -> None:
        """Forget the state of an emptied Redis."""
        self.jobs.clear()
        self._locks.clear()
        self._bound.clear()

    def probes(self, name: str, keys: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the commands to run after a script."""
        if name in _JOBS:
            commands: list[tuple[Any, ...]] = [("HGETALL", keys[0])]
            return commands + ([("GET", keys[2])] if name == "job_finish" else [])
        if name in _SLOTS:
            return [("ZCOUNT", keys[0], f"({self._world.now_ms}", "+inf")]
        return [("EXISTS", keys[0])] if name in _REQUESTS and ":requests:" in keys[0] else []

    def observe(
        self, host: Host | None, name: str, keys: Sequence[Any], args: Sequence[Any], answer: Any, probed: Sequence[Any]
    ) -> None:
        """Check a script's effect."""
        if isinstance(answer, Exception):
            self._world.fail(f"{name}: {answer}")
        elif name in _JOBS:
            self._job(host, name, args, probed)
        elif name in _SLOTS:
            job_id = str(args[0])
            is_done = self.jobs.get(job_id, {}).get("state") in DONE
            if name == "slot_reserve" and (host is None or is_done):
                self._reserved_late.add((keys[0], job_id))
            self._slots(keys[0], args, probed[0])
        else:
            self._request(name, keys, args, answer)

    def _job(self, host: Host | None, name: str, args: Sequence[Any], probed: Sequence[Any]) -> None:
        pairs = [part.decode(errors="replace") for part in probed[0]]
        row = dict(zip(pairs[::2], pairs[1::2], strict=True))
        if not row:
            return
        job_id = row["job_id"]
        before = self.jobs.get(job_id)
        self.jobs[job_id] = row
        if before is None:
            if name == "job_create":
                self._created(row)
            return
        if before == row:
            return
        self._world.note(
            "job", job=job_id[:6], state=row["state"], attempt=row["attempt"], node=row.get("node_id"), by=name
        )
        self._moved(name, before, row)
        if (before["attempt"], before.get("node_id")) != tuple(map(str, args[:2])):
            self._others_word(name, args, before)
        if before["state"] in DONE and any(before.get(field) != row.get(field) for field in _KEPT):
            self._world.fail(f"{name} changed a job that was done: {before} {row}")
        if name == "job_finish":
            self._finished(args, before, row, probed[1])
        if name == "job_retry":
            self._retried(args, row)
        if name == "job_release" and host in self._fleet.hosts:
            self._released(row)
        self.adopted += name == "job_adopt"

    def _created(self, row: Row) -> None:
        job_id, request = row["job_id"], row["request_key"]
        self._world.note("job", job=job_id[:6], request=request, home=row["home"], state=row["state"])
        if job_id in self._most:
            self._anew.add(job_id)
        self._most[job_id] = int(row["max_attempts"])
        for other in self.jobs.values():
            counts = {job_id, other["job_id"]} <= self._bound and (
                other["state"] not in DONE or other.get("outcome") == "ok"
            )
            if other["request_key"] == request and other["job_id"] != job_id and counts:
                self._world.fail(f"request {request} is a second job, {row}, besides {other}")

    def _moved(self, name: str, before: Row, row: Row) -> None:
        old, new = JobState(before["state"]), JobState(row["state"])
        if old != new:
            legal = {LEGAL.get((old, event)) for event in _EVENTS.get(name, ())}
            if new not in legal:
                self._world.fail(f"{name} moved job {row['job_id']} from {old} to {new}")
        if before["attempt"] != row["attempt"]:
            once_more = name == "job_retry" and int(row["attempt"]) == int(before["attempt"]) + 1
            if not once_more:
                self._world.fail(f"{name} moved job {row['job_id']} to attempt {row['attempt']}: {before}")
        if before.get("node_id") != row.get("node_id") and name != "job_dispatch":
            self._world.fail(f"{name} gave job {row['job_id']} to another node: {before} {row}")

    def _others_word(self, name: str, args: Sequence[Any], before: Row) -> None:
        """Fail if a command of a foreign node or another attempt changed the job."""
        attempt = str(args[0])
        is_own_word = name == "job_finish" and not attempt
        if name in {"job_step", "job_finish"} and not is_own_word:
            self._world.fail(f"{name} of attempt {attempt} by {args[1]} counted for {before}")
        if name in {"job_dispatch", "job_retry"} and before["attempt"] != attempt:
            self._world.fail(f"{name} of attempt {attempt} counted for {before}")

    def _finished(self, args: Sequence[Any], before: Row, row: Row, result: bytes) -> None:
        job_id = row["job_id"]
        self.finished += 1
        if before["state"] in DONE and result not in self.results[job_id]:
            self._world.fail(f"job {job_id} has a second result: {result!r}")
        if str(args[0]) and before["state"] not in WITH_NODE:
            self._world.fail(f"a node's result counted for {before}")
        self.results.setdefault(job_id, []).append(result)

    def _retried(self, args: Sequence[Any], row: Row) -> None:
        self.retried += 1
        self._free[row["job_id"]] += int(args[3])
        if int(row["attempt"]) > self._most[row["job_id"]] + self._free[row["job_id"]]:
            self._world.fail(f"job {row['job_id']} has more attempts than it may have: {row}")

    def _released(self, row: Row) -> None:
        """Check that an instance freed a job's slot before it released the job, unless a reservation was late."""
        node_id = row.get("node_id", "")
        key = self._fleet.keys.reserved(node_id)
        late = (key, row["job_id"]) in self._reserved_late
        if node_id and not late and self._server.ask("ZSCORE", key, row["job_id"]):
            self._world.fail(f"job {row['job_id']} is released, and its slot at {node_id} is not")

    def _slots(self, key: str, args: Sequence[Any], held: int) -> None:
        node_id = key.partition("{node:")[2].partition("}")[0]
        slots, before = self._fleet.nodes[node_id].slots, self._held[node_id]
        self._held[node_id] = held
        brought = str(args[1]) == "1024"  # a reconnecting node reserves a slot for a job that it holds
        if held > max(slots, before) and not brought:
            self._world.fail(f"{held} slots of {node_id} are held, it has {slots}")

    def _request(self, name: str, keys: Sequence[Any], args: Sequence[Any], answer: Any) -> None:
        lock = keys[0] if name == "request_take_over" else keys[1]
        if name == "request_forget":
            if not self._server.ask("EXISTS", lock):
                self._locks.pop(lock, None)
            return
        is_taken = answer == 1 if name == "request_take_over" else answer[1] == 1
        if name == "request_bind" and is_taken:
            self._bound.add(str(args[0]))
        home = str(args[0] if name == "request_take_over" else args[1])
        holder, until_ms = self._locks.get(lock, ("", 0))
        if is_taken and name == "request_take_over" and holder not in {"", home} and self._world.now_ms < until_ms:
            self._world.fail(
                f"{home} took the lock {lock} of {holder}, which has it for {until_ms - self._world.now_ms} ms"
            )
        if is_taken and not (name == "request_bind" and self._world.now_ms < until_ms):
            self._locks[lock] = (home, self._world.now_ms + int(args[1] if name == "request_take_over" else args[3]))

    # Clients' views

    def assigned(self, node_id: str, job_id: str, attempt: int) -> None:
        """Check an attempt that a node got."""
        other = self.given.setdefault((job_id, attempt), node_id)
        if other != node_id and job_id not in self._anew:
            self._world.fail(f"attempt {attempt} of job {job_id} was given to {other} and to {node_id}")

    def answered(self, request_key: str, message: dict[str, Any]) -> None:
        """Check a node's result at its session."""
        result, job_id = message["result"], message["job_id"]
        if result.get("lie") == message["node_id"]:  # the attempt became this node's before its lie arrived
            return
        if (
            "lie" in result
            or result["request"] != request_key
            or (result["node"], result["attempt"])
            != (
                message["node_id"],
                message["attempt"],
            )
        ):
            self._world.fail(f"request {request_key} has another's answer: {message}")
        kept_results = self.results.get(job_id, [])
        if not any(result["nonce"].encode() in kept_result for kept_result in kept_results):
            self._world.fail(
                f"request {request_key} has an answer that did not count: {message}, kept is {kept_results!r}"
            )

    # The end

    def remains(self) -> list[str]:
        """Return what is left in Redis after all jobs are done."""
        ask, keys, fleet = self._server.ask, self._fleet.keys, self._fleet
        remains = [
            f"job {row['job_id'][:6]} is {row['state']}"
            for row in self.jobs.values()
            if row["state"] != JobState.RELEASED
        ]
        for node_id in fleet.nodes:
            held = ask("ZRANGEBYSCORE", keys.reserved(node_id), f"({self._world.now_ms}", "+inf")
            remains += [f"{node_id} has a slot reserved for {job.decode()[:6]}" for job in held]
        for pool in ask("SMEMBERS", keys.pools):
            remains += [f"job {job.decode()[:6]} waits in line" for job in ask("HKEYS", keys.waiting(pool.decode())[2])]
        for gateway in fleet.gateways:
            remains += [f"{gateway.host.id} still schedules {job_id[:6]}" for job_id in gateway.instance.dispatch.jobs]
            for link in gateway.instance.nodes.values():
                remains += [f"{gateway.host.id} thinks {link.id} has {job_id[:6]}" for job_id in link.jobs]
        for (stream,) in ((keys.inbox(gateway.instance.instance_id),) for gateway in fleet.gateways):
            remains += [f"{count} messages in {stream}"] if (count := ask("XLEN", stream)) else []
        return remains
