"""Conditional requests, Allow, quotas: what HTTP clients already know how to use."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from expunge_service.api.dependencies import Service
from tests.service.worlds import live_model, publish

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
REQUESTS = "/v1/deletion-requests"
MADE: dict[str, dict[str, Any]] = {
    "/v1/holds": {"subject_id": "ada", "reason": "court order"},
    "/v1/webhooks": {"url": "https://hooks.example/x"},
}


@pytest.mark.parametrize("path", MADE)
def test_location_leads_to_what_was_made_and_if_match_guards_its_end(client: TestClient, path: str) -> None:
    made = client.post(path, json=MADE[path])
    place = made.headers["location"]
    shown = client.get(place)
    assert shown.status_code == 200 and shown.json()["id"] == made.json()["id"]
    tag = shown.headers["etag"]
    same = client.get(place, headers={"If-None-Match": f'"other", W/{tag}'})
    if path == "/v1/webhooks":  # what it was sent goes on, and is no part of the tag
        assert (same.status_code, same.headers["etag"]) == (200, tag)
    else:
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    for wrong in ('"other"', f"W/{tag}", "canary"):  # If-Match compares strongly
        refused = client.delete(place, headers={"If-Match": wrong})
        assert (refused.status_code, refused.json()["code"]) == (412, "changed_meanwhile")
        assert "canary" not in refused.text
    assert client.get(place).json() == shown.json()
    ended = client.delete(place, headers={"If-Match": tag})
    assert ended.status_code == 200 and ended.headers["etag"] != tag
    assert client.get(place, headers={"If-None-Match": tag}).status_code == 200
    assert client.delete(place, headers={"If-Match": tag}).status_code == 412
    assert client.delete(place, headers={"If-Match": "*"}).status_code == 200


def test_a_request_that_changed_meanwhile_is_not_cancelled(client: TestClient, service: Service) -> None:
    object.__setattr__(service, "settings", service.settings.model_copy(update={"cancel_window": 3600}))
    live_model(service)
    made = client.post(REQUESTS, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"})
    place = made.headers["location"]
    tag = client.get(place).headers["etag"]
    assert client.get(place, headers={"If-None-Match": tag}).status_code == 304
    assert client.delete(place, headers={"If-Match": '"old"'}).status_code == 412
    assert client.get(place).json()["status"] == "queued"
    assert client.delete(place, headers={"If-Match": tag}).json()["status"] == "cancelled"


def test_a_follower_polls_the_head_by_its_etag(client: TestClient, service: Service) -> None:
    model = live_model(service)
    head, checkpoint = "/v1/models/digits/versions/current", "/v1/models/digits/versions/current/checkpoint"
    tags = {path: client.get(path).headers["etag"] for path in (head, checkpoint)}
    for path, tag in tags.items():
        assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    looked = client.head(checkpoint)
    assert (looked.status_code, looked.content, looked.headers["content-length"]) == (200, b"", "11")
    assert client.head(checkpoint, headers={"If-None-Match": tags[checkpoint]}).status_code == 304
    publish(service, model, b"version two")
    for path, tag in tags.items():
        assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/models", "GET, POST"),
        ("POST", REQUESTS + "/" + "0" * 32, "DELETE, GET"),
        ("GET", REQUESTS + "/batch", "POST"),
        ("PATCH", "/v1/models/digits/versions/1/checkpoint", "GET, HEAD"),
    ],
)
def test_405_names_every_method_of_the_address(client: TestClient, method: str, path: str, allowed: str) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["code"], answer.headers["allow"]) == (405, "method_not_allowed", allowed)


def test_every_answer_to_a_key_tells_its_quota(client: TestClient, service: Service) -> None:
    service.limiter.burst, service.limiter.per_second = 3, 0.1
    told = [client.get(path) for path in ("/v1/models", "/v1/models/none", "/v1/models?limit=0", "/v1/models")]
    assert [answer.status_code for answer in told] == [200, 404, 422, 429]
    assert [answer.headers["ratelimit"].split(";")[1] for answer in told] == ["r=2", "r=1", "r=0", "r=0"]
    assert told[0].headers["ratelimit-policy"] == '"key";q=3;w=30'
    assert "ratelimit" not in client.get("/healthz").headers


def test_how_long_an_idempotency_key_is_kept_is_published(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    (header,) = [
        each for each in document["paths"][REQUESTS]["post"]["parameters"] if each["name"] == "Idempotency-Key"
    ]
    assert header["required"] is True and "86400 seconds" in header["description"]
