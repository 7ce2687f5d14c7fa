"""`@operation`: a function for callers with a scope; Python programs call it as the owner."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import update_wrapper
from typing import Concatenate, Generic, ParamSpec, TypeVar

from pipeline.operations.caller import Caller, owner
from pipeline.operations.quotas import AtOnce
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[P, R]):
    """An operation. Call it as the owner of this process, or use `by` for another caller."""

    def __init__(
        self,
        function: Callable[Concatenate[Caller, P], R],
        scope: Scope,
        *,
        spends: bool = False,
        reads: bool = False,
        places: AtOnce | None = None,
    ) -> None:
        update_wrapper(self, function)
        whole = inspect.signature(function)
        self.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])
        self._function, self.scope, self.spends, self.reads, self._places = function, scope, spends, reads, places

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        """Call the function as the owner of this process."""
        return self._function(owner(), *args, **named)

    def by(self, caller: Caller, /, *args: P.args, **named: P.kwargs) -> R:
        """Call the function as `caller`. Raises `Refused` without the scope, or for a change while the API is
        read-only, or without a free place in time (429, 503), and `OverCap` beyond today's cap."""
        (caller.check_scope if self.reads else caller.check)(self.scope)
        if self.spends:
            caller.check_spending()
        with caller.place(self._places) if self._places else nullcontext():
            return self._function(caller, *args, **named)


def operation(
    scope: Scope, *, spends: bool = False, places: AtOnce | None = None
) -> Callable[[Callable[Concatenate[Caller, P], R]], Operation[P, R]]:
    """Return a decorator that makes an `Operation` of `function(caller, …)`. `spends`: it may cause calls to AI
    services; `places`: a call of a server's caller takes one of them."""

    def wrap(function: Callable[Concatenate[Caller, P], R]) -> Operation[P, R]:
        return Operation(function, scope, spends=spends, places=places)

    return wrap


def acts(
    function: Callable[Concatenate[Context, P], R],
    scope: Scope,
    *,
    spends: bool = False,
    reads: bool = False,
    places: AtOnce | None = None,
) -> Operation[P, R]:
    """Make an operation of a service's function of a context, with a scope, `spends` and `places` as its only policy.

    `reads`: it changes no data, so read-only mode allows it.
    """

    def ask(caller: Caller, /, *args: P.args, **named: P.kwargs) -> R:
        return function(caller.context, *args, **named)

    return Operation(update_wrapper(ask, function), scope, spends=spends, reads=reads, places=places)


def reads(function: Callable[Concatenate[Context, P], R], scope: Scope = Scope.READ) -> Operation[P, R]:
    """Make an operation of a query of a context, which read-only mode allows."""
    return acts(function, scope, reads=True)
