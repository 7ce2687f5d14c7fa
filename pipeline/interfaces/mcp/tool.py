"""What a tool is: a function with typed arguments and a typed result, and what it may do."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache
from inspect import cleandoc
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter

from pipeline.interfaces.http.fields import Strict
from pipeline.interfaces.http.pictures import Pictures
from pipeline.operations.caller import Caller
from pipeline.operations.refusal import Refused
from pipeline.storage.api_keys import Scope

Function = TypeVar("Function", bound=Callable[..., Any])
Report = Callable[[float, float | None, str], Coroutine[Any, Any, None]]


@cache
def adapter(result: Any) -> TypeAdapter[Any]:
    """Describes and writes results of this kind: a model or a view."""
    return TypeAdapter(result)


class Arguments(Strict):
    """What a tool is asked. What it does not know is refused, so that nobody believes it was heeded."""


@dataclass(frozen=True)
class Picture:
    """A result that is looked at, beside what is said of it."""

    png: bytes
    about: Any


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    caller: Caller
    pictures: Pictures
    """Those that this process makes."""
    base_url: str
    """Where people see the console, without a slash at its end."""
    report: Report
    """Tells the client how far it is, if it asked for that: (done, of how many, in words)."""
    local: bool = False
    """The caller is a program of this machine's user, so paths name their files."""

    @property
    def may_write(self) -> bool:
        """Whether the caller may use tools that write, so that answers may name them."""
        return may_use(self.caller, writes=True, local=self.local)


@dataclass(frozen=True)
class Tool:
    """A tool as it is listed, and the function behind it. One that is not async runs in a thread."""

    name: str
    title: str
    description: str
    function: Callable[..., Any]
    arguments: type[Arguments]
    local_arguments: type[Arguments]
    """Over stdio."""
    result: Any
    writes: bool = False
    spends: bool = False
    """It may lead to calls of AI services."""
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    """It may reach what is not Penstock: addresses elsewhere."""

    def arguments_for(self, *, local: bool) -> type[Arguments]:
        return self.local_arguments if local else self.arguments


@dataclass
class Toolbox:
    """The tools of one module, in their order."""

    tools: list[Tool] = field(default_factory=list)

    def tool(
        self,
        title: str,
        *,
        result: Any = None,
        asks: type[Arguments] | None = None,
        asks_locally: type[Arguments] | None = None,
        **traits: bool,
    ) -> Callable[[Function], Function]:
        """A decorator for `(call, asked) -> result`. Types say what it takes and gives, the docstring what it is for.

        `result`: what is said beside a picture. `asks`, `asks_locally`: arguments over HTTP and stdio, if they differ.
        """

        def add(function: Function) -> Function:
            types = get_type_hints(function)
            asked: type[Arguments] = asks or types["asked"]
            self.tools.append(
                Tool(
                    function.__name__,
                    title,
                    cleandoc(function.__doc__ or ""),
                    function,
                    asked,
                    asks_locally or asked,
                    result or types["return"],
                    **traits,
                )
            )
            return function

        return add


def check(caller: Caller, *, writes: bool, local: bool) -> None:
    """Raise `Refused` unless the caller may use tools that write (`writes`) or tools that only read.

    Without a key, whoever is on this machine may do everything by the API; what an assistant writes needs to be
    allowed, since texts that it reads may tell it what to do.
    """
    if local and writes and caller.scope is Scope.READ:
        raise Refused("this assistant may only read: start it as `penstock mcp --write`", code="forbidden")
    caller.check(Scope.WRITE if writes else Scope.READ)
    if writes and not (caller.has_key or caller.context.settings.api.mcp_write):
        raise Refused(
            "assistants without a key may only read: send a key with the scope write (`penstock keys create NAME "
            "--scope write`), or set PENSTOCK_API__MCP_WRITE=true",
            code="forbidden",
        )


def may_use(caller: Caller, *, writes: bool, local: bool) -> bool:
    """Whether the caller may use tools that write (`writes`) or tools that only read."""
    try:
        check(caller, writes=writes, local=local)
    except Refused:
        return False
    return True
