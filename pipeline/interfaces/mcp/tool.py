"""A tool: a function with typed arguments and a typed result, and its traits, such as whether it writes."""

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
    """The `TypeAdapter` of a type of results, for its schema and its JSON; built once for each type."""
    return TypeAdapter(result)


class Arguments(Strict):
    """The arguments of a tool. Refuses unknown names, so that an assistant notices its mistake."""


@dataclass(frozen=True)
class Picture:
    """A result with a picture. `about`: the structured result beside it."""

    png: bytes
    about: Any


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    caller: Caller
    pictures: Pictures
    """The pictures that this process renders."""
    base_url: str
    """The console's address for people, without a slash at its end."""
    report: Report
    """Reports progress to a client that asked for it: (done, total, in words)."""
    local: bool = False
    """Whether the caller is a program of this machine's user, so that paths name the user's files."""

    @property
    def may_write(self) -> bool:
        """Whether the caller may use tools that write, so that answers may name them."""
        return may_use(self.caller, writes=True, local=self.local)


@dataclass(frozen=True)
class Tool:
    """A tool as the server lists it, and its function. A function that is not async runs in a thread."""

    name: str
    title: str
    description: str
    function: Callable[..., Any]
    arguments: type[Arguments]
    local_arguments: type[Arguments]
    """The arguments over stdio."""
    result: Any
    writes: bool = False
    spends: bool = False
    """Whether it may lead to calls of AI services."""
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    """Whether it may fetch addresses outside Penstock."""
    only_http: bool = False
    """Whether it is of no use over stdio."""

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
        over_http: type[Arguments] | None = None,
        over_stdio: type[Arguments] | None = None,
        **traits: bool,
    ) -> Callable[[Function], Function]:
        """Return a decorator that adds a function `(call, arguments) -> result` as a tool, with these traits of `Tool`.

        Annotations give the schemas, the docstring the description. `result`: the structured result beside a picture.
        `over_http`, `over_stdio`: arguments, where these differ.
        """

        def add(function: Function) -> Function:
            types = get_type_hints(function)
            arguments: type[Arguments] = over_http or types["arguments"]
            self.tools.append(
                Tool(
                    function.__name__,
                    title,
                    cleandoc(function.__doc__ or ""),
                    function,
                    arguments,
                    over_stdio or arguments,
                    result or types["return"],
                    **traits,
                )
            )
            return function

        return add


def check(caller: Caller, *, writes: bool, local: bool) -> None:
    """Raise `Refused` unless the caller may use tools that write (`writes`) or tools that only read.

    A caller on this machine needs no key for the API. An assistant needs one to write, or a setting, since the texts
    that it reads may instruct it.
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
