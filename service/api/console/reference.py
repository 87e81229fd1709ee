"""``/docs``: the API's reference, made here from the OpenAPI document; and ``/runbooks``, to which the alerts lead.

No key is needed. The browser loads nothing from anybody else.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from expunge.service.api.console.render import page

router = APIRouter(include_in_schema=False)
_JSON = "application/json"


@dataclass(frozen=True)
class Operation:
    """One call as the page shows it."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[dict[str, Any]]
    body: str
    """name of its schema; empty: it takes none"""
    answers: list[tuple[str, str]]
    """(status, what it is)"""
    address: str
    """its path and query, with the examples of what is required in place"""
    sent: str
    """an example of its body; empty: it takes none"""
    given: str
    """an example of what it answers; empty: nothing, or a file"""
    key: bool
    """whether it is to be sent under an Idempotency-Key"""
    curl: str


@router.get("/docs")
def reference(request: Request) -> Response:
    document = request.app.openapi()
    rooms = [(tag, _operations(document, tag["name"])) for tag in document["tags"]]
    schemas = {name: json.dumps(schema, indent=2) for name, schema in document["components"]["schemas"].items()}
    return page("reference.html", info=document["info"], rooms=rooms, schemas=schemas)


@router.get("/runbooks")
def runbooks() -> Response:
    """Show what to do about each alert."""
    return page("runbooks.html")


def _operations(document: dict[str, Any], tag: str) -> list[Operation]:
    return [
        _operation(method.upper(), path, facts)
        for path, methods in document["paths"].items()
        for method, facts in methods.items()
        if tag in facts.get("tags", [])
    ]


def _operation(method: str, path: str, facts: dict[str, Any]) -> Operation:
    sent = facts.get("requestBody", {}).get("content", {}).get(_JSON, {})
    parameters = facts.get("parameters", [])
    needed = [each for each in parameters if each.get("required")]
    examples = {each["name"]: str(each["example"]) for each in needed}
    query = urlencode([(each["name"], each["example"]) for each in needed if each["in"] == "query"])
    address = re.sub(r"\{(\w+)\}", lambda name: examples[name[1]], path) + (f"?{query}" if query else "")
    return Operation(
        id=facts["operationId"],
        method=method,
        path=path,
        summary=facts.get("summary", ""),
        description=facts.get("description", ""),
        parameters=parameters,
        body=_named(sent.get("schema", {})),
        answers=[
            (code, _named(_schema(answer)) or answer["description"]) for code, answer in facts["responses"].items()
        ],
        address=address,
        sent=json.dumps(sent["example"], indent=2) if sent else "",
        given=_given(facts["responses"]),
        key="Idempotency-Key" in examples,
        curl=_curl(method, address, sent, "Idempotency-Key" in examples, bool(facts.get("security"))),
    )


def _given(answers: dict[str, Any]) -> str:
    """Return an example of the successful answer: JSON laid out, a text as it is."""
    contents = [each.get("content", {}) for code, each in answers.items() if code[0] == "2"]
    for content in (each for kinds in contents for each in kinds.values() if "example" in each):
        given = content["example"]
        return given if isinstance(given, str) else json.dumps(given, indent=2)
    return ""


def _curl(method: str, address: str, sent: dict[str, Any], keyed: bool, secured: bool) -> str:
    """Return the call as a command, for ``$URL`` and ``$KEY``."""
    words = ["curl -s"]
    words += {"GET": [], "HEAD": ["-I"]}.get(method, [f"-X {method}"])
    words += [f'"$URL{address}"']
    words += ['-H "Authorization: Bearer $KEY"'] * secured
    words += ['-H "Idempotency-Key: $(uuidgen)"'] * keyed
    if sent:
        words += [f'-H "Content-Type: {_JSON}"', f"-d {shlex.quote(json.dumps(sent['example']))}"]
    return " ".join(words)


def _schema(answer: dict[str, Any]) -> dict[str, Any]:
    return next((each.get("schema", {}) for each in answer.get("content", {}).values()), {})


def _named(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
