"""Who asks for an operation, and what they may have."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from pipeline.flows import check_sections
from pipeline.operations.quotas import Quotas
from pipeline.operations.refusal import Refused, keyless
from pipeline.process import get_context
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from pipeline.storage.schema import ensure

_READY = "schema.ensured"


async def _stays() -> bool:
    return False


@dataclass(frozen=True)
class Caller:
    """Who asks. `id` names a key or an address; it is empty for the owner of this process, for whom no account pays."""

    context: Context
    id: str = ""
    name: str = ""
    scope: Scope | None = Scope.ADMIN
    """None: no key, where one is needed."""
    has_key: bool = False
    session: str = ""
    """The id of the session through which the key is used: a cookie, which browsers send by themselves."""
    quotas: Quotas | None = None
    """What this caller may have; None: no limits."""
    ending: Event = field(default_factory=Event)
    """Set when the server that serves this caller begins to end."""
    is_gone: Callable[[], Awaitable[bool]] = field(default=_stays, repr=False, compare=False)
    """Whether the caller closed the connection."""

    @property
    def key_name(self) -> str:
        """The name of the key; empty for somebody on this machine."""
        return self.name if self.has_key else ""

    @property
    def is_admin(self) -> bool:
        """Whether they may also read what models said: previews and replies hold what was asked about."""
        return self.scope is not None and self.scope.includes(Scope.ADMIN)

    def goes_on(self) -> bool:
        """False once the server begins to end: nobody waits for a result any more."""
        return not self.ending.is_set()

    def check_scope(self, needed: Scope) -> None:
        """Raise `Refused` unless their key has this scope: 401 without a key, 403 with a lesser one."""
        if self.scope is None:
            raise keyless()
        if not self.scope.includes(needed):
            raise Refused(f"this needs a key with the scope {needed}; yours has {self.scope}", code="forbidden")

    def check(self, needed: Scope) -> None:
        """Raise `Refused` unless they may do now what needs this scope."""
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
        """Raise `OverCap` (429) if what they asked for has cost enough today."""
        if self.quotas is not None and self.scope is not None:
            self.quotas.check_spending(self.id)

    def check_model(self, provider: str, model: str) -> None:
        """Raise `Refused` (422) for a model that the provider's configuration does not name, neither as its model nor
        in its price list, unless an administrator asks: its costs would not be known.

        Empty names: the server's choice.
        """
        profile = self.context.settings.providers.get(provider or self.context.settings.provider)
        if not model or self.is_admin or profile is None or profile.kind == "nodes":
            return  # the service refuses a provider that there is not
        if model not in {profile.model, *profile.prices} - {"*"}:
            raise Refused(
                "this model is not named in the provider's configuration: give it a price there, or use a key with the "
                "scope admin",
                code="unknown_model",
            )

    @contextmanager
    def pages(self, returned_after: type[Exception] = Exception) -> Iterator[Callable[[int], None]]:
        """`charge(count)`: charge this caller for pages to convert, once, however often a transaction is repeated.

        Raises `Refused` (429). After such an error, the pages are given back.
        """
        taken = 0

        def charge(count: int) -> None:
            nonlocal taken
            if self.quotas is not None and count and not taken:
                self.quotas.take_pages(self.id, count)
                taken = count

        try:
            yield charge
        except returned_after:
            if self.quotas is not None and taken:
                self.quotas.give_back_pages(self.id, taken)
            raise


def owner() -> Caller:
    """Whoever runs this process: a program or a command on this machine, which may do everything.

    An embedded database gets its schema on first use. Raises `UserError` if a server's lacks this version's.
    """
    context = get_context()
    if _READY not in context.cache:
        check_sections(context.settings)
        ensure(context)
        context.cache[_READY] = True
    return Caller(context)
