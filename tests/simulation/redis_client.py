"""Redis on virtual time: scripts get the time as an argument, and no key expires by the server's clock."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha1
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.simulation.wire import Wire
from tests.simulation.world import World

_TIME = "{math.floor(ARGV[#ARGV] / 1000), ARGV[#ARGV] % 1000 * 1000}"
_NO_EXPIRY = "local function kept() return 1 end\n"
GATE_WAKES = ("KEYS: gate_lib.lua", "Wake all waiters of a scope")


def on_virtual_time(text: str) -> str:
    """Rewrite a script to take the time from its last argument. Its keys never expire, so no logic may rely on that."""
    text = text.replace("redis.call('TIME')", _TIME).replace(", 'PX', ARGV[1] + 1000", "")
    return _NO_EXPIRY + text.replace("redis.call('PEXPIREAT', ", "kept(").replace("redis.call('PEXPIRE', ", "kept(")


class Scripts:
    """The scripts of a server, by the kernel's text."""

    def __init__(self) -> None:
        self.sha: dict[str, str] = {}
        self.wakes: set[str] = set()
        self.changed: dict[str, str] = {}
        """Texts of scripts that a mutation replaces."""
        self.replaced: set[str] = set()
        """Those of these texts that occurred."""

    def load(self, redis: "SimulatedRedis", text: str) -> str:
        if text not in self.sha:
            changed = text
            for old, new in self.changed.items():
                self.replaced |= {old} if old in changed else set()
                changed = changed.replace(old, new)
            virtual = on_virtual_time(changed)
            self.sha[text] = sha1(virtual.encode(), usedforsecurity=False).hexdigest()
            redis.wire.call("SCRIPT", "LOAD", virtual)
            if any(sign in text for sign in GATE_WAKES):
                self.wakes.add(text)
        return self.sha[text]


class SimulatedRedis(Redis):
    """The client of simulated processes. Each command may fail or be sent twice, and its sender may die."""

    world: World
    wire: Wire
    scripts: Scripts
    after_gate: Callable[[], None]
    """Called when a gate may have handed out tokens."""
    spoke: Callable[[], None]
    """Called after each command."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        world = self.world
        if world.acting is None:
            return self._do(*args, **options)
        world.point(f"before {args[0]}")
        if world.chance(world.faults.redis_error):
            world.note("redis fails", command=args[0])
            raise RedisConnectionError("the connection is lost")
        if world.chance(world.faults.repeat):
            world.note("redis repeats", command=args[0])
            self._do(*args, **options)
        answer = self._do(*args, **options)
        self.spoke()
        world.point(f"after {args[0]}")
        return answer

    def _do(self, *args: Any, **options: Any) -> Any:
        options.pop("keys", None)
        answer = self.wire.call(*args)
        callback = self.response_callbacks.get(args[0])
        return callback(answer, **options) if callback else answer

    def register_script(self, script: Any) -> Any:
        sha, wakes = self.scripts.load(self, script), script in self.scripts.wakes

        def run(keys: Sequence[str] = (), args: Sequence[Any] = (), client: Any = None) -> Any:
            answer = self.execute_command("EVALSHA", sha, len(keys), *keys, *args, self.world.now_ms)
            if wakes:
                self.after_gate()
            return answer

        return run

    def time(self, **_: Any) -> tuple[int, int]:
        return self.world.now_ms // 1000, self.world.now_us % 1_000_000

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        self.world.point("before a pipeline")
        return _Pipeline(self)

    def forget(self, key: str) -> None:
        """Delete a key that has expired."""
        self.wire.call("DEL", key)


class _Pipeline:
    """Commands that the client sends together."""

    def __init__(self, owner: SimulatedRedis) -> None:
        self._owner = owner
        self._commands: list[tuple[Any, ...]] = []

    def __enter__(self) -> "_Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self._commands.clear()

    def watch(self, *_names: Any) -> None:
        """No other process acts between the read and the write."""

    def multi(self) -> None:
        """As above."""

    def get(self, name: Any) -> Any:
        return self._owner.wire.call("GET", name)

    def set(self, name: Any, value: Any) -> None:
        self._commands.append(("SET", name, value))

    def delete(self, *names: Any) -> None:
        self._commands.append(("DEL", *names))

    def zadd(self, name: Any, scores: Mapping[Any, Any]) -> None:
        self._commands.append(("ZADD", name, *(part for member, score in scores.items() for part in (score, member))))

    def pexpire(self, name: Any, time: Any) -> None:
        self._owner.world.at(int(time) / 1000, lambda: self._owner.forget(name))

    def execute(self) -> list[Any]:
        return [self._owner.wire.call(*command) for command in self._commands]
