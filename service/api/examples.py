"""Examples for the OpenAPI document: one of each request and answer, made from its schema and a few known values."""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]
_ID = "5f1c7a3e9b2d4c60a8e1f0d3b7c92a46"
_DIGEST = "9b74c9897bac770ffc029102a200c5de1d1ad0a8f5b1c3e3e2a4c6d8f0a1b2c3"
KNOWN: Node = {
    "id": _ID,
    "search": _ID,
    "request_id": _ID,
    "hold_id": _ID,
    "key_id": _ID,
    "endpoint_id": _ID,
    "delivery_id": f"msg_{_ID}",
    "endpoint": _ID,
    "subject_id": "person-7",
    "name": "digits",
    "model": "digits",
    "models": ["digits"],
    "recipe": "digits",
    "method": "recollection",
    "number": 2,
    "version": 2,
    "consumer_id": "api-1",
    "checkpoint_sha256": _DIGEST,
    "subject_digest": _DIGEST,
    "leaf_hash": _DIGEST,
    "opening": _DIGEST,
    "url": "https://hooks.example.com/expunge",
    "regulation": "gdpr",
    "label": "privacy desk",
    "reason": None,
    "title": None,
    "remedy": None,
    "rejection": None,
    "extended_at": None,
    "first_due_at": None,
    "due_at": "2026-12-01T09:00:00Z",
    "received_at": "2026-11-01T09:00:00Z",
    "created_at": "2026-11-01T09:00:00Z",
    "published_at": "2026-11-01T09:00:09Z",
    "completed_at": "2026-11-01T09:00:09Z",
    "timestamp": "2026-11-01T09:00:09Z",
    "guarantee": "proved",
    "holdout_accuracy": 0.957,
    "generation": 1,
}
"""values by the name of their field, where the schema admits them"""
PARAMETERS: Node = {"number": "2", "leaf": "41"}
"""those whose field in a body is of another type"""
BODIES: Node = {
    "DeletionOrder": {"subject_id": "person-7", "regulation": "gdpr", "received_at": "2026-11-01T09:00:00Z"},
    "BatchOrder": {"requests": [{"subject_id": "person-7"}, {"subject_id": "person-8", "models": ["digits"]}]},
    "Registration": {"name": "digits", "recipe": "digits", "method": "recollection", "epsilon": 8, "delta": 1e-5},
    "HoldOrder": {"subject_id": "person-7", "reason": "case 2026-114, until the court decides"},
    "KeyOrder": {"label": "privacy desk", "scopes": ["deletions:write", "deletions:read"]},
    "EndpointOrder": {"url": "https://hooks.example.com/expunge", "kinds": ["deletion_request.completed"]},
    "Justification": {"reason": "the person asked to come back"},
    "Problem": {
        "type": "https://expunge.invalid/problems/not_found",
        "title": "Not Found",
        "status": 404,
        "detail": "There is no such deletion request.",
        "instance": "/v1/deletion-requests/" + _ID,
        "code": "not_found",
        "errors": [],
    },
}
"""whole bodies, where values by name would not fit together"""
TEXTS: Node = {
    "text/plain": "expunge.example/log\n42\nm3THw3vMIpcc6v5dQ0mGZTbcQ8cwbGW8Zx2L3Qv4l1k=\n\n"
    "\u2014 expunge.example/log c2lnbmVkIGJ5IHRoZSBsb2cgYW5kIG5vdCBieSB0aGlzIHBhZ2U=\n",
    "text/event-stream": {"id": "41", "event": "request.completed", "data": f'{{"request": "{_ID}"}}', "retry": 3000},
}
"""answers that are no JSON, by their media type: a signed head of the log, an event"""
FILE = "application/octet-stream"


def exemplify(made: Node) -> None:
    """Put an example into each body, answer and required parameter of the document, webhooks included; into no file."""
    schemas = made["components"]["schemas"]
    described = [*made["paths"].values(), *made["webhooks"].values()]
    kinds = {path: each["post"] for path, each in made["webhooks"].items()}
    for operation in (operation for methods in described for operation in methods.values()):
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        for body in bodies:
            for kind, content in body.get("content", {}).items():
                if "schema" in content and kind != FILE:
                    content["example"] = TEXTS.get(kind) or example(schemas, content["schema"])
        for parameter in operation.get("parameters", []):
            if parameter.get("required"):
                name = parameter["name"]
                parameter["example"] = PARAMETERS.get(name) or example(schemas, parameter["schema"], name)
    for kind, operation in kinds.items():
        operation["requestBody"]["content"]["application/json"]["example"]["type"] = kind


def example(schemas: Node, schema: Node, field: str = "") -> Any:  # noqa: PLR0911  (one for each kind of schema)
    """Return a value that the schema admits. ``field`` is the name of the field that it is for."""
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    if reference:
        return BODIES[reference] if reference in BODIES else example(schemas, schemas[reference], field)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return KNOWN[field] if KNOWN.get(field) in schema["enum"] else schema["enum"][0]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        if field in KNOWN and KNOWN[field] is None and {"type": "null"} in choices:
            return None
        return example(schemas, choices[0], field)
    kind = schema.get("type")
    if kind == "array":
        listed = KNOWN.get(field)
        if isinstance(listed, list) and schema.get("items", {}).get("type") == "string":
            return listed
        return [example(schemas, schema.get("items", {}), field.removesuffix("s"))]
    if field in KNOWN and isinstance(KNOWN[field], _PYTHON.get(str(kind), ())):
        return KNOWN[field]
    if kind == "object":
        return {name: example(schemas, each, name) for name, each in schema.get("properties", {}).items()}
    return _plain(schema, str(kind), field)


_PYTHON: dict[str, Any] = {"string": str, "integer": int, "number": (int, float)}


def _plain(schema: Node, kind: str, field: str) -> Any:
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    if kind == "boolean":
        return schema.get("default", False)
    if kind == "null":
        return None
    if schema.get("format") == "date-time":
        return "2026-11-01T09:00:00Z"
    if "[0-9a-f]{32}" in str(schema.get("pattern", "")):
        return _ID
    return schema.get("default") or (field or "text")[: schema.get("maxLength", 99)]
