"""Requests to a gateway from browsers, other hosts and monitors."""

from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from pipeline.nodes.protocol import NODE_PATH
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.support.gateway import GatewayThread, token


def get(gateway: GatewayThread, path: str, **headers: str) -> tuple[int, Any]:
    sent = Request(gateway.url.replace("ws://", "http://") + path, headers=headers)
    try:
        with urlopen(sent, timeout=30) as answer:
            return answer.status, answer.headers
    except HTTPError as error:
        return error.code, error.headers


@pytest.mark.parametrize("host", ["evil.example.org", "127.0.0.1.evil.org", ""])
def test_a_foreign_host_name_gets_no_metrics(gateway: GatewayThread, context: Context, host: str) -> None:
    status, headers = get(gateway, "/metrics", Host=host)
    assert status == 401
    assert headers["x-content-type-options"] == "nosniff"
    assert get(gateway, "/healthz", Host=host)[0] == 200
    secret = token(context, TokenKind.SESSION)
    assert get(gateway, "/metrics", Host=host or "a", Authorization=f"Bearer {secret}")[0] == 200
    assert get(gateway, "/metrics")[0] == 200, "this machine by its own name"
    assert get(gateway, f"/metrics?token={secret}")[0] == 400


def test_a_web_page_cannot_connect_even_with_a_token(gateway: GatewayThread, context: Context) -> None:
    page = Origin("http://127.0.0.1")
    known = {"Authorization": f"Bearer {token(context, TokenKind.NODE)}"}
    with pytest.raises(InvalidStatus) as refused:
        connect(gateway.url + NODE_PATH, additional_headers=known, origin=page, proxy=None)
    assert refused.value.response.status_code == 403
