"""The API reference describes everything in the OpenAPI document in words, with all references resolved."""

import json
from typing import Any

import pytest

from pipeline.interfaces.console import reference
from pipeline.interfaces.console.reference import Operation

DOCUMENT: dict[str, Any] = {
    "paths": {
        "/things/{thing_id}": {
            "post": {
                "operationId": "things_change",
                "tags": ["things"],
                "summary": "Change",
                "description": "Change a thing.\n\nIt `stays` changed.",
                "parameters": [
                    {"name": "thing_id", "in": "path", "required": True, "schema": {"type": "string"}},
                    {
                        "name": "wait",
                        "in": "query",
                        "description": "So long.",
                        "schema": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1000}, {"type": "null"}]},
                    },
                ],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                "responses": {
                    "404": {"description": "Not Found", "content": {"application/problem+json": {"schema": {}}}},
                    "200": {
                        "description": "OK",
                        "content": {
                            "application/json": {
                                "schema": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}}
                            }
                        },
                    },
                },
            }
        },
        "/health": {"get": {"operationId": "health", "summary": "Live", "responses": {}}},
    },
    "components": {
        "schemas": {
            "Thing": {
                "properties": {
                    "colour": {"enum": ["red", "it's blue", ""], "description": "As seen."},
                    "inner": {"anyOf": [{"$ref": "#/components/schemas/Thing"}, {"type": "null"}]},
                    "made_at": {"type": "string", "format": "date-time"},
                },
                "required": ["colour"],
            }
        }
    },
}


@pytest.fixture
def change() -> Operation:
    return next(operation for operation in reference.operations(DOCUMENT) if operation.id == "things_change")


def test_a_search_finds_operations_that_have_all_its_words() -> None:
    known = reference.operations(DOCUMENT)
    assert [(operation.subject, operation.method, operation.path) for operation in known] == [
        ("the server", "GET", "/health"),
        ("things", "POST", "/things/{thing_id}"),
    ]
    assert [operation.id for operation in reference.search(known, "WAIT stays")] == ["things_change"]
    assert reference.search(known, "wait for it") == []


def test_parameters_and_bodies_are_described_in_words(change: Operation) -> None:
    thing_id, wait = reference.parameters(DOCUMENT, change)
    assert (thing_id.where, thing_id.required, wait.kind) == ("path", True, "whole number, 0 to 1,000")
    [body] = reference.request_bodies(DOCUMENT, change)
    colour, inner, *_ = body.fields
    assert (colour.kind, colour.required, inner.kind) == ("red | it's blue", True, "anything or null")
    assert max(field.depth for field in body.fields) == reference.DEEPEST, "a recursive field ends at the limit"
    assert json.loads(body.example)["colour"] == "red"


def test_problems_are_separate_from_the_good_answer(change: Operation) -> None:
    hoped, problem = reference.answers(DOCUMENT, change)
    assert (hoped.status, problem.status, problem.bodies) == ("200", "404", [])
    assert "made_at" in {field.name for field in hoped.bodies[0].fields}


def test_a_shell_accepts_the_curl_command(change: Operation) -> None:
    command = reference.curl(DOCUMENT, change, "http://127.0.0.1:1", key=True)
    assert command.startswith('curl -X POST -H "Authorization: Bearer $PENSTOCK_KEY"')
    assert command.endswith("'http://127.0.0.1:1/things/THING_ID'")
