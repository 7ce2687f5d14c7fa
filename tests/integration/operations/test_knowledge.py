"""Scopes and charges of operations on knowledge bases, for all interfaces."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from pipeline.engine.accounts import OverCap
from pipeline.flows.knowledge import queries
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.operations import knowledge
from pipeline.operations.caller import Caller
from pipeline.operations.knowledge import Verb
from pipeline.operations.quotas import Quotas
from pipeline.operations.refusal import Refused
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.support.knowledge import add_base, add_item
from tests.support.knowledge_driver import Driver
from tests.support.provider_server import ProviderServer


class Spent:
    """Quotas of a caller over the spend cap."""

    def check_spending(self, caller: str) -> None:
        raise OverCap(f"{caller} has spent enough", 60)


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__EMB__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__EMB__MODEL": "embedder",
        "PENSTOCK_PROVIDERS__EMB__PRICES": '{"dear": {"input": 9}}',
        "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": "emb",
        "PENSTOCK_KNOWLEDGE__EMBEDDINGS_MODEL": "v",
    }


def caller(context: Context, scope: Scope | None = Scope.WRITE, *, spent: bool = False) -> Caller:
    quotas = cast("Quotas", Spent()) if spent else Quotas(context)
    return Caller(context, "key", "key", scope, has_key=True, quotas=quotas)


def test_a_search_by_meaning_over_vectors_of_a_provider_is_charged(context: Context) -> None:
    paid, free = add_base(context, "paid"), add_base(context, "free", provider="local", model="")
    Driver(context).completed(paid, "The filter is changed monthly.")
    Driver(context).completed(free, "The filter is changed weekly.")
    spent = caller(context, Scope.READ, spent=True)
    for bases in ("paid", None):
        with pytest.raises(OverCap):
            knowledge.search.by(spent, bases, "filter")
        assert knowledge.search.by(spent, bases, "filter", by_meaning=False).hits
    assert knowledge.search.by(spent, [free], "filter").hits
    assert knowledge.search.by(caller(context, Scope.READ), paid, "filter").hits


def test_only_administrators_choose_models_of_vectors_that_the_configuration_does_not_name(context: Context) -> None:
    writer, base = caller(context), add_base(context)
    for options in ({"provider": "emb", "model": "o9"}, {"model": "o9"}):
        for member, may in ((writer, False), (caller(context, Scope.ADMIN), True)):
            for ask in (lambda by, options: knowledge.create_base.by(by, str(options), **options), _edit(base)):
                if may:
                    ask(member, options)
                    continue
                with pytest.raises(Refused) as refused:
                    ask(member, options)
                assert refused.value.code == "unknown_model"
    for name, model in (("x", "v"), ("y", "dear"), ("z", None)):
        assert knowledge.create_base.by(writer, name, model=model).name == name


def _edit(base: str) -> Any:
    return lambda by, options: knowledge.edit_base.by(by, base, **options)


def test_a_bulk_action_skips_items_that_it_cannot_change(context: Context) -> None:
    base, writer = add_base(context), caller(context)
    ended, failed, line = (
        add_item(context, base, status) for status in (ItemStatus.COMPLETED, ItemStatus.FAILED, ItemStatus.PENDING)
    )
    other = add_item(context, add_base(context, "other"), ItemStatus.FAILED)
    done, skipped = knowledge.act.by(writer, Verb.CANCEL, base, [ended, line, other, "unknown"])
    assert (done, [item.id for item in skipped]) == (1, [ended, other, "unknown"])
    spent = caller(context, spent=True)
    with pytest.raises(OverCap):
        knowledge.act.by(spent, Verb.REPROCESS, base, [failed])
    assert knowledge.act.by(writer, Verb.REPROCESS, base, [failed, other])[0] == 1
    assert queries.item(context, failed).status is ItemStatus.PENDING
    assert knowledge.act.by(spent, Verb.DELETE, base, [ended, failed, line, other])[0] == 3
    assert [queries.item(context, item_id).deleting for item_id in (ended, failed, line, other)] == [True] * 3 + [False]
