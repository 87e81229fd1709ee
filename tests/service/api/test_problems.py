"""Errors: every one a problem, none repeats what was sent."""

from __future__ import annotations

import gzip
import json
import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expunge_service.api import problems
from expunge_service.api.dependencies import Service
from expunge_service.app import create_app
from expunge_service.infra import db
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.settings import Settings

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PATH = "/v1/deletion-requests"
JSON = {"Idempotency-Key": "k", "Content-Type": "application/json"}


def is_problem(answer: Any, status: int, code: str) -> bool:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert body.keys() == {"type", "title", "status", "detail", "instance", "code", "errors"}
    assert body["type"] == f"urn:expunge:problem:{body['code']}"
    assert "canary" not in answer.text
    return (answer.status_code, body["status"], body["code"]) == (status, status, code)


def test_no_host_header_leads_anywhere(client: TestClient) -> None:
    """An address with a slash too many was led to the host that the caller had named."""
    paths = [*client.app.openapi()["paths"], "/console/requests", "/console/login", "/console/keys"]  # type: ignore[attr-defined]
    for path in paths:
        for method in ("GET", "POST"):
            answer = client.request(method, f"{path}/", headers={"Host": "canary.example"}, follow_redirects=False)
            assert not answer.is_redirect, (method, path)


def test_no_answer_about_a_person_may_be_kept(client: TestClient) -> None:
    """Proxies and browsers keep an answer that does not forbid it; one has the opening, which is shown once."""
    made = client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "1"})
    path = f"/v1/deletion-requests/{made.json()['id']}"
    shown = client.get(path)
    answers = [made, shown, client.get("/v1/deletion-requests"), client.get(path, headers={"Authorization": ""})]
    answers.append(client.get(path, headers={"If-None-Match": shown.headers["etag"]}))
    answers += [client.get(f"{path}/certificate"), client.get("/v1/audit-log"), client.get("/v1/holds")]
    answers.append(client.post("/v1/deletion-requests/search", json={"subject_id": "ada"}))
    assert [each.status_code for each in answers] == [202, 200, 200, 401, 304, 404, 200, 200, 200]
    assert {each.headers.get("cache-control") for each in answers} == {"no-store"}


def test_what_the_framework_refuses_is_a_problem_too(client: TestClient) -> None:
    assert is_problem(client.get("/canary"), 404, "not_found")
    assert is_problem(client.put("/v1/models"), 405, "method_not_allowed")
    assert is_problem(client.get(PATH + "/canary"), 404, "not_found")
    assert is_problem(client.get(PATH, params={"limit": "canary"}), 422, "invalid_request")
    assert is_problem(client.get(PATH, params={"status": "canary"}), 422, "invalid_request")
    assert is_problem(client.get("/v1/audit-log/proof", params={"leaf": "canary"}), 422, "invalid_request")


def test_a_name_that_the_client_chose_is_not_repeated(client: TestClient) -> None:
    order = {"name": "digits", "recipe": "digits", "method": "recollection"}
    for chosen in ({"Canary!": 1}, {"canary": {"x": 1}}):
        answer = client.post("/v1/models", json=order | {"options": chosen})
        assert is_problem(answer, 422, "invalid_request")
        assert {each["pointer"] for each in answer.json()["errors"]} == {"/options"}
    assert is_problem(client.post("/v1/models", json=order | {"canary": 1}), 422, "invalid_request")


@pytest.mark.parametrize(
    "content", ["{canary", '{"subject_id": NaN canary', "\xff\xfe", '{"subject_id":' * 20_00, "[" * 50_000, "9" * 5000]
)
def test_a_body_that_is_not_json_is_a_problem(client: TestClient, content: str) -> None:
    answer = client.post(PATH, content=content.encode("latin-1"), headers=JSON)
    assert answer.status_code in (400, 422)
    assert is_problem(answer, answer.status_code, answer.json()["code"])
    assert "Send it in UTF-8" in answer.json()["detail"] or answer.json()["errors"]


def test_a_body_over_the_limit_is_refused_before_it_is_parsed(client: TestClient) -> None:
    assert is_problem(client.post(PATH, content=b"x" * 100_001, headers=JSON), 413, "body_too_large")

    def chunks() -> Any:  # no Content-Length
        for _ in range(200):
            yield b"x" * 1000

    assert is_problem(client.post(PATH, content=chunks(), headers=JSON), 413, "body_too_large")


def test_an_encoded_body_is_refused(client: TestClient) -> None:
    body = gzip.compress(json.dumps({"subject_id": "ada"}).encode())
    assert is_problem(
        client.post(PATH, content=body, headers=JSON | {"Content-Encoding": "gzip"}), 415, "content_encoding"
    )


def test_a_body_of_another_type_is_refused(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = client.post(PATH, content=b"subject_id=canary", headers=JSON | {"Content-Type": kind})
        assert is_problem(answer, 415, "content_type")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.2)


def test_a_busy_database_asks_to_come_back(impatient: None, client: TestClient, service: Service) -> None:
    other = Database(service.database.engine.url.render_as_string())
    with other.write() as session:
        now(session)
        answer = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"})
    assert is_problem(answer, 503, "busy")
    assert answer.headers["retry-after"] == "1"
    other.close()


def test_an_unexpected_error_tells_neither_client_nor_log_what_it_carried(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    app = create_app(settings)

    @app.get("/boom")
    def boom() -> None:
        raise RuntimeError("canary in a message")

    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get("/boom")
    assert is_problem(answer, 500, "internal_error")
    logged = capsys.readouterr().err
    assert "canary" not in logged
    line = json.loads(next(each for each in logged.splitlines() if "unexpected error" in each))
    assert "RuntimeError" in line["message"]
    assert "boom" in line["message"]


def test_a_log_line_has_no_field_that_is_not_on_the_list(
    capsys: pytest.CaptureFixture[str], settings: Settings
) -> None:
    create_app(settings)
    try:
        raise ValueError("canary")
    except ValueError:
        logging.getLogger("expunge_service.test").exception("it failed", extra={"subject": "canary", "model": "digits"})
    line = json.loads(capsys.readouterr().err)
    assert line.keys() == {"time", "level", "logger", "message", "model", "error"}
    assert "canary" not in json.dumps(line)


def test_busy_is_what_the_problem_says(settings: Settings) -> None:
    assert Busy.retry_after_seconds == 1
    assert problems.not_found("audit_entry").detail == "There is no such audit entry."
