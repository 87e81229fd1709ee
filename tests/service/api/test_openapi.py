"""The API's description: examples that its own schemas admit, webhooks, one vocabulary, and what generators make."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator

from expunge_service.app import create_app
from expunge_service.infra.settings import Settings
from expunge_service.requests.webhooks import WebhookEvent

GENERATOR = os.environ.get("EXPUNGE_TEST_OPENAPI_PYTHON_CLIENT") or shutil.which("openapi-python-client")
JAR = os.environ.get("EXPUNGE_TEST_OPENAPI_GENERATOR_JAR")
VERBS = {
    "cancel", "checkpoint", "checkpoint_head", "consistency", "create", "create_batch", "estimate",
    "budget", "extend", "follow", "healthz", "index", "lift", "metrics", "proof", "put", "readyz",
    "reject", "remove", "replay", "retrain", "retry", "revoke", "rotate", "search", "show",
    "test", "verify", "say_same", "suppressions", "commitments", "say_other", "policy", "retire",
    "rename", "approve", "publish", "port", "rehearse_same",
}  # fmt: skip


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with TestClient(create_app(Settings(home=tmp_path_factory.mktemp("home")))) as client:
        found: dict[str, Any] = client.get("/openapi.json").json()
        return found


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for part in ("paths", "webhooks")
        for path, methods in document[part].items()
        for method, operation in methods.items()
    ]


def test_every_body_that_a_client_sends_has_an_example_that_its_schema_admits(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    }
    assert len(bodies) > 10
    for name in bodies:
        schema = schemas[name] | {"components": document["components"]}
        for example in schemas[name]["examples"]:
            errors = list(Draft202012Validator(schema).iter_errors(example))
            assert not errors, (name, errors[0].message, example)


def test_every_kind_of_news_is_a_webhook_with_its_payload(document: dict[str, Any]) -> None:
    assert set(document["webhooks"]) == {kind.value for kind in WebhookEvent}
    for kind, methods in document["webhooks"].items():
        body = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        kinds = schema["properties"]["type"]
        assert kind in kinds.get("enum", [kinds.get("const")])
        assert set(schema["properties"]) == {"type", "timestamp", "data"}


def test_operation_ids_are_a_noun_and_a_verb_of_one_list(document: dict[str, Any]) -> None:
    tags = {tag["name"].replace(" ", "_") for tag in document["tags"]}
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    for each in ids:
        noun = next(tag for tag in sorted(tags, key=len, reverse=True) if each.startswith(f"{tag}_"))
        assert each.removeprefix(f"{noun}_") in VERBS, each


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def test_one_generator_makes_every_model(document: dict[str, Any], tmp_path: Path) -> None:
    """openapi-python-client: a class for every schema, with every field."""
    if GENERATOR is None:
        pytest.skip("unverified here: openapi-python-client is not installed (EXPUNGE_TEST_OPENAPI_PYTHON_CLIENT)")
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    command = [GENERATOR, "generate", "--path", "openapi.json", "--output-path", "made", "--meta", "none"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert missing(document, tmp_path / "made" / "models") == {}


def test_the_other_generator_makes_every_model(document: dict[str, Any], tmp_path: Path) -> None:
    """OpenAPI Generator (Java), its Python client."""
    if JAR is None or shutil.which("java") is None:
        pytest.skip("unverified here: set EXPUNGE_TEST_OPENAPI_GENERATOR_JAR, and install java")
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    command = ["java", "-jar", JAR, "generate", "-i", "openapi.json", "-g", "python", "-o", "made"]
    command += ["--global-property", "models,modelDocs=false,modelTests=false"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert missing(document, tmp_path / "made" / "openapi_client" / "models") == {}


def missing(document: dict[str, Any], folder: Path) -> dict[str, list[str]]:
    """Return what a generator left out: schemas without a class, and fields that are not in the class's file."""
    files = {plain(path.stem): path.read_text() for path in folder.glob("*.py")}
    gone: dict[str, list[str]] = {}
    for name, schema in document["components"]["schemas"].items():
        text = files.get(plain(name))
        if text is None:
            gone[name] = ["the class"]
            continue
        fields = [field for field in schema.get("properties", {}) if f'"{field}"' not in text and field not in text]
        if fields:
            gone[name] = fields
    return gone
