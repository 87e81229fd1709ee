"""``/docs``: the API's reference, made here from the OpenAPI document. The browser loads nothing from anybody else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from service.api.console.render import page

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Operation:
    """One call as the page shows it."""

    method: str
    path: str
    summary: str
    description: str
    parameters: list[dict[str, Any]]
    body: str
    """name of its schema; empty: it takes none"""
    answers: list[tuple[str, str]]
    """(status, what it is)"""


@router.get("/docs")
def reference(request: Request) -> Response:
    document = request.app.openapi()
    rooms = [(tag, _operations(document, tag["name"])) for tag in document["tags"]]
    schemas = {name: json.dumps(schema, indent=2) for name, schema in document["components"]["schemas"].items()}
    return page("reference.html", info=document["info"], rooms=rooms, schemas=schemas)


def _operations(document: dict[str, Any], tag: str) -> list[Operation]:
    return [
        _operation(method, path, facts)
        for path, methods in document["paths"].items()
        for method, facts in methods.items()
        if tag in facts.get("tags", [])
    ]


def _operation(method: str, path: str, facts: dict[str, Any]) -> Operation:
    sent = facts.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return Operation(
        method=method.upper(),
        path=path,
        summary=facts.get("summary", ""),
        description=facts.get("description", ""),
        parameters=facts.get("parameters", []),
        body=_named(sent),
        answers=[
            (code, _named(_schema(answer)) or answer["description"]) for code, answer in facts["responses"].items()
        ],
    )


def _schema(answer: dict[str, Any]) -> dict[str, Any]:
    return next((each.get("schema", {}) for each in answer.get("content", {}).values()), {})


def _named(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
