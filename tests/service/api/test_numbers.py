"""No number that a caller may send ends in a 500: each has a bound, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expunge_service.api.dependencies import Service
from expunge_service.api.routes.models.models import CalibrationSettings, Registration
from tests.service.conftest import Login
from tests.service.worlds import live_model

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
EDGES = (
    *("-1", "0", "-0.0", "5e-324", "1e-300", "1e-160", "1e-20", "1e300", "1.7e308", "1e400", str(2**63 - 1)),
    *(str(2**63), "9" * 19, "9" * 30, "9" * 400, "9" * 5000),
)
JSON = {"Content-Type": "application/json"}


def unbounded(document: dict[str, Any], node: Any, seen: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
    """Yield the integers under a node that have no greatest value."""
    if isinstance(node, list):
        for each in node:
            yield from unbounded(document, each, seen)
    if not isinstance(node, dict):
        return
    if node.get("type") == "integer" and not node.keys() & {"maximum", "enum", "const"}:
        yield node
    name = node.get("$ref", "").rpartition("/")[2]
    if name and name not in seen:
        yield from unbounded(document, document["components"]["schemas"][name], seen | {name})
    for each in node.values():
        yield from unbounded(document, each, seen)


def test_every_whole_number_that_the_document_takes_has_a_greatest_value(client: TestClient) -> None:
    document = client.app.openapi()  # type: ignore[attr-defined]
    for path, operations in document["paths"].items():
        for method, facts in operations.items():
            sent = [facts.get("parameters", []), facts.get("requestBody", {})]
            assert list(unbounded(document, sent)) == [], (method, path)


def bodies(number: str) -> Iterator[str]:
    """Yield members of a registration, each with the number in another field."""
    for name in Registration.model_fields.keys() - {"name", "recipe", "method"}:
        yield f'"{name}": {number}'
    for name in CalibrationSettings.model_fields:
        yield f'"calibration": {{"{name}": {number}}}'
        yield f'"calibration": {{"{name}": [{number}]}}'
    yield f'"options": {{"rank": {number}}}'
    yield f'"max_distance": 1e-300, "noise_std": {number}'
    yield f'"max_distance": {number}, "noise_std": 1e-300'


@pytest.mark.parametrize("number", EDGES, ids=lambda text: text[:24])
def test_no_number_of_a_policy_is_more_than_a_refusal(client: TestClient, service: Service, number: str) -> None:
    """``noise_std`` 1e-300 was a 500: its cost was too large to be printed."""
    live_model(service)
    for place, members in enumerate(bodies(number)):
        order = f'{{"name": "m{place}", "recipe": "digits", "method": "recollection", {members}}}'
        assert client.post("/v1/models", content=order, headers=JSON).status_code < 500, members
        changed = client.patch("/v1/models/digits/policy", content=f"{{{members}}}", headers=JSON)
        assert changed.status_code < 500, members


@pytest.mark.parametrize("number", [*EDGES, "²", "1_0", "+1", "nan"], ids=lambda text: text[:24])
def test_no_number_in_an_address_is_more_than_a_refusal(
    client: TestClient, service: Service, login: Login, number: str
) -> None:
    """Page numbers of 19 digits were a 500."""
    live_model(service)
    console = login()
    document = client.app.openapi()["paths"]  # type: ignore[attr-defined]
    for path, operations in document.items():
        for parameter in operations.get("get", {}).get("parameters", []):
            place = {"path": (path.replace(f"{{{parameter['name']}}}", number), {})}
            address, options = place.get(parameter["in"], (path, {parameter["name"]: number}))
            address = address.replace("{name}", "digits")
            if parameter["in"] != "header" and "{" not in address and not address.startswith("/v1/events"):
                status = client.get(address, params=options).status_code
                no_worker_lives = (path, status) == ("/readyz", 503)
                assert status < 500 or no_worker_lives, (path, parameter["name"])
    for address in (
        "/console/requests?page=",
        "/console/requests.csv?page=",
        "/console/audit/",
        "/console/audit?before=",
    ):
        assert console.get(f"{address}{number}").status_code < 500, address
