"""The caller of an operation, with its scope and quotas."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from pipeline.flows import check_sections
from pipeline.operations.quotas import AtOnce, Quotas
from pipeline.operations.refusal import Refused, keyless
from pipeline.process import get_context
from pipeline.reading.sandbox.limits import Unwanted
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from pipeline.storage.schema import ensure

_READY = "schema.ensured"


async def _stays() -> bool:
    return False


@dataclass(frozen=True)
class Caller:
    """A caller. `id` names a key or an address; it is empty for this process's owner, whose work no account pays."""

    context: Context
    id: str = ""
    name: str = ""
    scope: Scope | None = Scope.ADMIN
    """None: the caller has no key but needs one."""
    has_key: bool = False
    session: str = ""
    """The id of the browser session that uses the key, from its cookie."""
    quotas: Quotas | None = None
    """The quotas of this caller; None: no limits."""
    ending: Event = field(default_factory=Event)
    """Set when this caller's server begins to shut down."""
    is_gone: Callable[[], Coroutine[Any, Any, bool]] = field(default=_stays, repr=False, compare=False)
    """Whether the caller closed the connection."""
    has_left: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)
    """The same for threads of the server; False elsewhere."""

    @property
    def key_name(self) -> str:
        """The name of the caller's key; empty for a user of this machine."""
        return self.name if self.has_key else ""

    @property
    def is_admin(self) -> bool:
        """Whether the caller has the scope admin, and so may also read models' answers, which quote the documents."""
        return self.scope is not None and self.scope.includes(Scope.ADMIN)

    def goes_on(self) -> bool:
        """True until the server begins to shut down or, asked in a thread, the caller has closed the connection."""
        return not (self.ending.is_set() or self.has_left())

    def check_presence(self) -> None:
        """Raise `Unwanted` unless `goes_on`."""
        if not self.goes_on():
            raise Unwanted("the caller no longer waits")

    def check_scope(self, needed: Scope) -> None:
        """Raise `Refused` unless the caller's key has this scope: 401 without a key, 403 with a lesser scope."""
        if self.scope is None:
            raise keyless()
        if not self.scope.includes(needed):
            raise Refused(f"this needs a key with the scope {needed}; yours has {self.scope}", code="forbidden")

    def check(self, needed: Scope) -> None:
        """Raise `Refused` unless the caller has this scope. While the API is read-only, the callers of a server have
        only the scope read."""
        self.check_scope(needed)
        if self.quotas is not None and needed is not Scope.READ and self.context.settings.api.read_only:
            raise Refused("this API is read-only (PENSTOCK_API__READ_ONLY)", code="read_only")

    def may(self, needed: Scope) -> bool:
        """Whether `check` passes."""
        try:
            self.check(needed)
        except Refused:
            return False
        return True

    def check_spending(self) -> None:
        """Raise `OverCap` (429) if the caller has spent its cap today. A caller without quotas passes."""
        if self.quotas is not None and self.scope is not None:
            self.quotas.check_spending(self.id)

    def check_model(self, provider: str, model: str) -> None:
        """Raise `Refused` (422) for a model that the provider's configuration names neither as its model nor among its
        prices, because its costs are unknown. Administrators may use any model.

        Passes an empty model (the server's default), nodes, and unknown providers.
        """
        profile = self.context.settings.providers.get(provider or self.context.settings.provider)
        if not model or self.is_admin or profile is None or profile.kind == "nodes":
            return  # the service refuses an unknown provider
        if model not in {profile.model, *profile.prices} - {"*"}:
            raise Refused(
                "the provider's configuration does not name this model: give it a price there, or use a key with the "
                "scope admin",
                code="unknown_model",
            )

    def take_pages(self, count: int) -> None:
        """Charge this caller for pages; negative counts give back. Raises `Refused` (429)."""
        if self.quotas is not None and count:
            self.quotas.take_pages(self.id, count)

    def place(self, pool: AtOnce, places: int = 1) -> AbstractContextManager[None]:
        """Hold places of a pool during the block; none for a caller without quotas. Raises as `AtOnce.one`."""
        return nullcontext() if self.quotas is None else pool.one(self.id, self.goes_on, places)

    @contextmanager
    def pages(self, returned_after: type[Exception] = Exception) -> Iterator[Callable[[int], None]]:
        """Yield `charge(count)`, which charges this caller for pages to convert, only once if a transaction repeats.

        `charge` raises `Refused` (429). Gives the pages back after an error of the type `returned_after`.
        """
        charged = 0

        def charge(count: int) -> None:
            nonlocal charged
            if not charged:
                self.take_pages(count)
                charged = count

        try:
            yield charge
        except returned_after:
            self.take_pages(-charged)
            raise


def owner() -> Caller:
    """The owner of this process: a program or a command on this machine, which may call every operation.

    Creates an embedded database's schema on first use. Raises `UserError` if a server's database lacks it.
    """
    context = get_context()
    if _READY not in context.cache:
        check_sections(context.settings)
        ensure(context)
        context.cache[_READY] = True
    return Caller(context)
