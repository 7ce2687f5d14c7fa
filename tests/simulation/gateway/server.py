"""A redis-server on virtual time: scripts get the time as an argument, and keys expire by it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib import resources
from typing import Any

from redis.exceptions import ResponseError

from pipeline.nodes.state import sender
from tests.simulation.gateway.loop import Host, LoopWorld
from tests.simulation.wire import Wire

Command = tuple[Any, ...]
_HEAD = """
local sim_now = tonumber(table.remove(ARGV))
local function sim_at(at) return string.format('%.0f', at) end
local function sim_expire_at(key, at)
  at = tonumber(at)
  if at <= sim_now then return redis.call('DEL', key) end
  redis.call('ZADD', 'sim:ends', sim_at(at), key)
  return redis.call('PEXPIREAT', key, sim_at(at))
end
local function sim_expire(key, ms) return sim_expire_at(key, sim_now + ms) end
local function sim_set(key, value, px, ms)
  if not px then return redis.call('SET', key, value) end
  redis.call('ZADD', 'sim:ends', sim_at(sim_now + ms), key)
  return redis.call('SET', key, value, 'PXAT', sim_at(sim_now + ms))
end
local function sim_ttl(key)
  local left = redis.call('PTTL', key)
  return left < 0 and left or redis.call('ZSCORE', 'sim:ends', key) - sim_now
end
local function sim_pending(stream, group, _, idle, start, stop, count)
  local all = redis.pcall('XPENDING', stream, group, start, stop, 100000)
  if all.err then return all end
  local found = {}
  for _, one in ipairs(all) do
    one[3] = sim_now - (redis.call('HGET', 'sim:given', stream .. ' ' .. one[1]) or 0)
    if one[3] >= tonumber(idle) and #found < tonumber(count) then found[#found + 1] = one end
  end
  return found
end
local function sim_claim(stream, group, consumer, _, entry, ...)
  redis.call('HSET', 'sim:given', stream .. ' ' .. entry, sim_at(sim_now))
  return redis.call('XCLAIM', stream, group, consumer, 0, entry, ...)
end
local function sim_members(key)
  local found = redis.call('SMEMBERS', key)
  table.sort(found)
  return found
end
local function sim_readgroup(...)
  local found, arguments = redis.call('XREADGROUP', ...), {...}
  for _, entry in ipairs(found and found[1] and found[1][2] or {}) do
    redis.call('HSET', 'sim:given', arguments[7] .. ' ' .. entry[1], sim_at(sim_now))
  end
  return found
end
"""
_VIRTUAL = {
    "redis.call('TIME')": "{math.floor(sim_now / 1000), sim_now % 1000 * 1000}",
    "redis.call('PEXPIREAT', ": "sim_expire_at(",
    "redis.call('SMEMBERS', ": "sim_members(",
    "redis.call('PEXPIRE', ": "sim_expire(",
    "redis.call('PTTL', ": "sim_ttl(",
    "redis.call('SET', ": "sim_set(",
    "redis.pcall('XPENDING', ": "sim_pending(",
    "redis.call('XCLAIM', ": "sim_claim(",
    "redis.call('XREADGROUP', ": "sim_readgroup(",
}
_PURGE = """
for _, key in ipairs(redis.call('ZRANGEBYSCORE', 'sim:ends', '-inf', ARGV[1])) do
  if redis.call('PTTL', key) >= 0 then redis.call('DEL', key) end
  redis.call('ZREM', 'sim:ends', key)
end
"""
_GIVEN = "for i = 2, #ARGV do redis.call('HSET', 'sim:given', KEYS[1] .. ' ' .. ARGV[i], ARGV[1]) end"


def on_virtual_time(text: str) -> str:
    """Rewrite a script to take the time from its last argument, by which its keys expire."""
    for real, virtual in _VIRTUAL.items():
        text = text.replace(real, virtual)
    return _HEAD + text


class Scripts:
    """The scripts of the gateway's state, by the SHA1 by which the gateway calls them."""

    def __init__(self, wire: Wire) -> None:
        self.changed: dict[str, str] = {}
        """Texts of scripts that a mutation replaces."""
        self.replaced: set[str] = set()
        """The replaced texts that occurred in a script."""
        self.names: dict[str, str] = {}
        self._wire = wire
        self._shas: dict[str, str] = {}
        folder = resources.files("pipeline.nodes.state").joinpath("lua")
        for name in sorted(file.name.removesuffix(".lua") for file in folder.iterdir()):
            self.names[sender._sha(name)] = name
        self.purge = self._load(_PURGE)
        self.given = self._load(_GIVEN)

    def _load(self, text: str) -> str:
        self._wire.call("SCRIPT", "LOAD", text)
        return sha1(text.encode(), usedforsecurity=False).hexdigest()

    def load(self, sha: str) -> str:
        """Return the SHA1 of the rewritten script."""
        if sha not in self._shas:
            text = sender._texts[sha]
            for old, new in self.changed.items():
                self.replaced |= {old} if old in text else set()
                text = text.replace(old, new)
            self._shas[sha] = self._load(on_virtual_time(text))
        return self._shas[sha]


class Server:
    """The server of all processes of a seed. The observer checks each atomic command before the next."""

    def __init__(self, world: LoopWorld, wire: Wire, scripts: Scripts) -> None:
        self.world = world
        self._wire = wire
        self._scripts = scripts
        self._readers: dict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self.probes: Callable[[str, Sequence[Any]], list[Command]] = lambda name, keys: []
        """Returns the commands to run after a script of this name, on these keys."""
        self.observe: Callable[..., None] = lambda *_: None
        """Called after each script with: process, name, keys, arguments, its answer, the answers to the probes."""
        self._purged_ms = 0

    def run(self, host: Host | None, commands: Sequence[Command]) -> list[Any]:
        """Run commands. An error takes the place of its answer."""
        world = self.world
        sent: list[Command] = []
        if world.now_ms != self._purged_ms:
            self._purged_ms = world.now_ms
            sent.append(("EVALSHA", self._scripts.purge, 0, world.now_ms))
        places = []
        for command in commands:
            virtual, probes = self._virtual(command)
            places.append((len(sent), len(probes)))
            sent += [virtual, *probes]
        results = self._wire.calls(sent)
        answers = []
        for command, (place, count) in zip(commands, places, strict=True):
            # Each server has its own hash seed, so the order of sets differs between runs.
            answers.append(sorted(results[place]) if command[0] == "SMEMBERS" else results[place])
            if count:
                name, keys, arguments = self._script(command)
                self.observe(host, name, keys, arguments, results[place], results[place + 1 : place + 1 + count])
            elif command[0] == "XADD" and results[place]:
                kind, body = (command[command.index(name) + 1] for name in ("kind", "body"))
                world.note("sends", kind=kind, to=command[1].partition("{")[2].partition("}")[0], body=body)
                self.wake(command[1])
        return answers

    def _script(self, command: Command) -> tuple[str, Sequence[Any], Sequence[Any]]:
        count = int(command[2])
        return self._scripts.names[command[1]], command[3 : 3 + count], command[3 + count :]

    def _virtual(self, command: Command) -> tuple[Command, list[Command]]:
        now_ms = self.world.now_ms
        if command[0] == "EVALSHA":
            name, keys, _ = self._script(command)
            probes = self.probes(name, keys)
            return ("EVALSHA", self._scripts.load(command[1]), *command[2:], now_ms), probes
        if command[0] == "SET" and "PX" in command:
            place = command.index("PX")
            until_ms = now_ms + int(command[place + 1])
            if "NX" not in command or not self._wire.call("EXISTS", command[1]):
                self._wire.call("ZADD", "sim:ends", until_ms, command[1])
            return (*command[:place], "PXAT", until_ms), []
        return command, []

    # Streams

    async def read(self, host: Host, command: Command) -> Any:
        """Run XREADGROUP, with BLOCK in virtual time. As in redis-py, entries are pairs with a dict."""
        block_s, plain, stream = 0.0, command, command[-2]
        if "BLOCK" in command:
            place = command.index("BLOCK")
            block_s, plain = int(command[place + 1]) / 1000, (*command[:place], *command[place + 2 :])
        (streams,) = self.run(host, [plain])
        if not streams and block_s:
            future: asyncio.Future[None] = self.world.loop.create_future()
            self._readers[stream].append(future)
            await asyncio.wait([future], timeout=block_s)
            if future in self._readers[stream]:
                self._readers[stream].remove(future)
            (streams,) = self.run(host, [plain])
        if isinstance(streams, ResponseError):
            raise streams
        if not streams:
            return streams
        entries = [
            (name, dict(zip(pairs[::2], pairs[1::2], strict=True)) if pairs else None) for name, pairs in streams[0][1]
        ]
        if plain[-1] == ">":
            names = [name for name, _ in entries]
            self._wire.call("EVALSHA", self._scripts.given, 1, stream, self.world.now_ms, *names)
        return [[streams[0][0], entries]]

    def wake(self, stream: str) -> None:
        """Wake the readers of a stream."""
        for future in self._readers.pop(stream, ()):
            if not future.done():
                future.set_result(None)

    def empty(self) -> None:
        """Empty the server."""
        self._wire.call("FLUSHALL")
        for stream in list(self._readers):
            self.wake(stream)

    def ask(self, *command: Any) -> Any:
        """Run a command of the observer."""
        return self._wire.call(*command)
