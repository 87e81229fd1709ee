"""The OpenAPI document: what FastAPI derives from the routes, and what it cannot know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

Node = dict[str, Any]
_TEXT = {"type": "string"}
HEADERS: dict[str, tuple[str, Node]] = {
    "Accept-Ranges": ("bytes", _TEXT),
    "Cache-Control": ("how long an answer may be kept", _TEXT),
    "Content-Range": ("which bytes of how many", _TEXT),
    "ETag": ("names this state of the resource", {"type": "string", "pattern": '^"[0-9a-f]{32,64}"$'}),
    "Link": ("the next page (RFC 8288)", _TEXT),
    "Location": ("the address of what was made", {"type": "string", "format": "uri-reference"}),
    "RateLimit": ("what is left of the key's quota (draft-ietf-httpapi-ratelimit-headers)", _TEXT),
    "Repr-Digest": ("sha-256 of the whole file (RFC 9530)", _TEXT),
    "Retry-After": ("seconds to wait", {"type": "integer", "minimum": 0}),
    "WWW-Authenticate": ("the challenge (RFC 6750)", _TEXT),
}
_ALWAYS = {"401": "WWW-Authenticate", "403": None, "429": "Retry-After", "503": "Retry-After"}
_TAGS = {
    "actors": "Holders of keys, by name; the audit log has their ids alone.",
    "audit log": "What happened, in a Merkle tree with signed heads (RFC 6962, C2SP).",
    "certificates": "Certificates of erasure.",
    "consumers": "Consumers and the versions that they serve.",
    "deletion requests": "Taking requests in and following them.",
    "events": "What changes, as it changes.",
    "health": "For probes and Prometheus; no key needed.",
    "holds": "Legal holds, and blocked requests.",
    "keys": "API keys.",
    "models": "Models, their preparation and budget.",
    "suppressions": "Lifting of suppression entries.",
    "versions": "Versions and their checkpoints.",
    "webhooks": "Endpoints, and what was sent to them.",
}
_VERBS = {
    "estimate_cost": "estimate",
    "withdraw": "cancel",
    "prolong": "extend",
    "lift_hold": "lift",
    "approve_large": "approve",
    "retry_request": "retry",
    "send_again": "replay",
}
"""the words of the API, where a function has another name than its operation"""
_REQUEST = {"request_id": "$response.body#/id"}
_LINKS: dict[tuple[str, str], dict[str, Node]] = {
    ("post", "/v1/deletion-requests"): {
        "deletion_requests_show": _REQUEST,
        "deletion_requests_cancel": _REQUEST,
        "certificates_show": _REQUEST,
        "suppressions_create": _REQUEST,
        "deletion_requests_verify": _REQUEST,
        "deletion_requests_reject": _REQUEST,
    },
    ("post", "/v1/models"): {
        operation: {"name": "$response.body#/name"}
        for operation in ("models_show", "models_budget", "versions_index", "consumers_index")
    },
    ("post", "/v1/holds"): {
        "holds_show": {"hold_id": "$response.body#/id"},
        "holds_lift": {"hold_id": "$response.body#/id"},
    },
    ("post", "/v1/keys"): {
        "keys_revoke": {"key_id": "$response.body#/id"},
    },
    ("post", "/v1/webhooks"): {
        "webhooks_show": {"endpoint_id": "$response.body#/id"},
        "webhooks_remove": {"endpoint_id": "$response.body#/id"},
    },
}
_PROBLEM_SCHEMA: Node = {
    "type": "object",
    "description": "RFC 9457. It never repeats what the client sent.",
    "required": ["type", "title", "status", "detail", "instance", "code", "errors"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "instance": {"type": "string", "format": "uri"},
        "code": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
        "errors": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}},
        "actions": {
            "type": "array",
            "description": "the steps that do help, where there are any",
            "items": {"$ref": "#/components/schemas/ActionView"},
        },
    },
}


def operation_id(route: APIRoute) -> str:
    """Return the tag and the function's name, as ``deletion_requests_show``, so that generated clients read well."""
    tag = str(route.tags[0]).replace(" ", "_") if route.tags else "console"
    return f"{tag}_{_VERBS.get(route.name, route.name)}"


def document(app: FastAPI, kept_seconds: float) -> Node:
    """Make the document once. ``kept_seconds``: how long the answer under an Idempotency-Key is kept."""
    if app.openapi_schema is None:
        app.openapi_schema = _complete(
            get_openapi(
                title=app.title,
                version=app.version,
                routes=app.routes,
                summary="Deletion requests for trained models.",
                description="Forget a person, publish a new version, prove what was done.",
                tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
                webhooks=app.webhooks.routes,
            ),
            f"one new random value for each new request; its answer is replayed for {kept_seconds:g} seconds",
        )
    return app.openapi_schema


def allowed(app: FastAPI, path: str) -> list[str]:
    """Return the methods that the document gives for an address; empty for one that is not in it."""
    paths = app.openapi()["paths"]
    template = path if path in paths else next((each for each in paths if _matches(each, path)), None)
    return [] if template is None else sorted(method.upper() for method in paths[template])


def members(app: FastAPI, method: str, path: str, place: Sequence[str | int]) -> list[str]:
    """Return the names that an object in the body of this call may have.

    ``place`` is the way to the object: names and indices. The result is empty where the document describes no object
    there.
    """
    made = app.openapi()
    template = next((each for each in made["paths"] if each == path or _matches(each, path)), "")
    operation = made["paths"].get(template, {}).get(method.lower(), {})
    node: Node = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for part in place:
        node = _resolved(made, node)
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return list(_resolved(made, node).get("properties", {}))


def _resolved(made: Node, node: Node) -> Node:
    """Return the schema that a reference names; of several choices the first that is not null."""
    choices = [each for each in node.get("anyOf", []) if each.get("type") != "null"]
    node = choices[0] if choices else node
    name = str(node.get("$ref", "")).rpartition("/")[2]
    return made["components"]["schemas"].get(name, {}) if name else node


def fields(app: FastAPI) -> frozenset[str]:
    """Return the names of all fields in the document. Every other name in a body is the client's own."""
    schemas = app.openapi()["components"]["schemas"].values()
    return frozenset(name for schema in schemas for name in schema.get("properties", {}))


def _matches(template: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path) is not None


def _complete(made: Node, of_key: str) -> Node:
    schemas = made["components"]["schemas"]
    schemas["Problem"] = _PROBLEM_SCHEMA
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    made["components"]["headers"] = {
        name: {"description": text, "schema": schema} for name, (text, schema) in HEADERS.items()
    }
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            _complete_operation(method, path, operation, of_key)
    for each in made["webhooks"].values():
        each["post"]["responses"] = {"204": {"description": "Any 2xx: it was received. 410: end all deliveries."}}
    for schema in _integers(made):
        schema.setdefault("format", "int64")  # generated clients would take 32 bits
    return made


def _complete_operation(method: str, path: str, operation: Node, of_key: str) -> None:
    answers = operation["responses"]
    codes = [400, 408, 413, 415, 500] if method in {"post", "put", "patch", "delete"} else [500]
    for code in codes:
        answers.setdefault(str(code), problem())
    for parameter in operation.get("parameters", []):
        _exact_parameter(parameter)
        if parameter["name"] == "Idempotency-Key":
            parameter |= {"required": True, "description": of_key}
        if parameter["name"] == "cursor":
            _add_headers(answers["200"], "Link")
    for operation_name, parameters in _LINKS.get((method, path), {}).items():
        links = answers["202" if "202" in answers else "201"].setdefault("links", {})
        links[operation_name] = {"operationId": operation_name, "parameters": parameters}
    if not operation.get("security"):
        return
    for code, answer in answers.items():
        if code[0] in "24":
            _add_headers(answer, "RateLimit", _ALWAYS.get(code))
        elif code == "503":
            _add_headers(answer, "Retry-After")
    operation["responses"] = dict(sorted(answers.items()))


def _exact_parameter(parameter: Node) -> None:
    """Remove null from a parameter's types: a parameter is there or not."""
    schema = parameter["schema"]
    choices = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if len(choices) == 1:
        parameter["schema"] = {**{name: value for name, value in schema.items() if name != "anyOf"}, **choices[0]}


def _add_headers(answer: Node, *names: str | None) -> None:
    for name in names:
        if name:
            answer.setdefault("headers", {})[name] = {"$ref": f"#/components/headers/{name}"}


def _integers(node: Any) -> Iterator[Node]:
    if isinstance(node, dict):
        if node.get("type") == "integer":
            yield node
        for each in node.values():
            yield from _integers(each)
    elif isinstance(node, list):
        for each in node:
            yield from _integers(each)


def problem() -> Node:
    """Return an answer that is an error, for a route's description."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": "Problem", "content": content}


def answer(code: int, *headers: str) -> dict[int | str, Node]:
    """Return the headers of a successful answer, for a route's description."""
    return {code: {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers}}}
