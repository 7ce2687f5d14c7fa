"""The addresses to which forms may lead."""

import pytest

from pipeline.interfaces.console.addresses import within


@pytest.mark.parametrize("path", ["/console/", "/console/documents/abc?page=2", "/console"])
def test_pages_of_the_console_are_taken(path: str) -> None:
    assert within(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/console//evil.example",
        "/consoles",
        "/console/../api/v1/status",
        "/console/%2e%2E/api/v1/status",
        "/console/x/./.%2e/../y",
        "/console/\\evil",
        "javascript:alert(1)",
        "/console/\r\nSet-Cookie: a=b",
        "/api/v1/documents",
    ],
)
def test_nothing_else_is(path: str) -> None:
    assert within(path) == "/console/"
