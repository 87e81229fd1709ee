"""examples/integrations: each adapter between a real API and a fake of the other system."""

from __future__ import annotations

import json
import re
import runpy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from expunge_client import Expunge
from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import DeletionRequest, WebhookDelivery, WebhookEndpoint
from expunge_service.requests.status import record_status
from expunge_service.requests.webhooks import WebhookEvent, add_endpoint, webhook_signature
from tests.service.worlds import live_model

EXAMPLES = Path(__file__).parents[3] / "examples" / "integrations"
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def example(name: str) -> Any:
    """The adapter's module, run as its own file."""
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


@pytest.fixture
def expunge(api: TestClient, key_of: Callable[..., dict[str, str]]) -> Iterator[Expunge]:
    key = key_of("deletions:write", "deletions:read")["Authorization"].removeprefix("Bearer ")
    with Expunge("http://testserver", key, transport=api._transport) as made:
        yield made


def requests(service: Service) -> list[DeletionRequest]:
    with service.database.read() as session:
        return list(session.scalars(select(DeletionRequest).order_by(DeletionRequest.created_at)))


def complete(service: Service) -> None:
    with service.database.write() as session:
        session.execute(update(DeletionRequest).values(status="completed"))
        session.flush()
        record_status(session, *session.scalars(select(DeletionRequest)).all())


class FakeSombra:
    """Transcend's gateway as examples/integrations/transcend.py remembers it: pages, a nonce for each request."""

    def __init__(self, people: int) -> None:
        self.waiting = {
            f"person-{number}": {
                "identifier": f"person-{number}",
                "requestId": f"00000000-0000-4000-8000-{number:012}",
                "nonce": f"nonce-{number}",
            }
            for number in range(people)
        }

    def __call__(self, call: httpx.Request) -> httpx.Response:
        if call.headers["authorization"] != "Bearer t" or call.headers["x-sombra-authorization"] != "Bearer s":
            return httpx.Response(401)
        if call.method == "GET" and call.url.path == "/v1/data-silo/silo/pending-requests/ERASURE":
            first, limit = int(call.url.params["offset"]), int(call.url.params["limit"])
            return httpx.Response(200, json={"items": list(self.waiting.values())[first : first + limit]})
        if (call.method, call.url.path) == ("PUT", "/v1/data-silo"):
            (profile,) = json.loads(call.content)["profiles"]
            item = self.waiting.get(profile["profileId"])
            if item is None or item["nonce"] != call.headers["x-transcend-nonce"]:
                return httpx.Response(400)
            del self.waiting[profile["profileId"]]
            return httpx.Response(200, json={})
        return httpx.Response(404)


def test_transcend_is_told_of_those_who_left_and_of_nobody_before(expunge: Expunge, service: Service) -> None:
    adapter, fake = example("transcend"), FakeSombra(103)
    live_model(service, people={"person-1": ["a"], "person-102": ["b"]})
    headers = {"Authorization": "Bearer t", "x-sombra-authorization": "Bearer s"}
    with httpx.Client(base_url="https://sombra", headers=headers, transport=httpx.MockTransport(fake)) as sombra:
        assert adapter.each_of(expunge, sombra, "silo") == "101 done, 2 under way, 0 failed"
        assert sorted(fake.waiting) == ["person-1", "person-102"]
        assert adapter.each_of(expunge, sombra, "silo") == "0 done, 2 under way, 0 failed"
        assert len(requests(service)) == 103, "who is sent again is the same deletion"
        complete(service)
        assert adapter.each_of(expunge, sombra, "silo") == "2 done, 0 under way, 0 failed"
        assert fake.waiting == {}
    assert {len(each.case_id or "") for each in requests(service)} == {36}


def test_one_who_fails_keeps_nobody_else_waiting(expunge: Expunge, capsys: pytest.CaptureFixture[str]) -> None:
    adapter, fake = example("transcend"), FakeSombra(3)
    fake.waiting["person-1"]["requestId"] = "no case"
    headers = {"Authorization": "Bearer t", "x-sombra-authorization": "Bearer s"}
    with httpx.Client(base_url="https://sombra", headers=headers, transport=httpx.MockTransport(fake)) as sombra:
        assert adapter.each_of(expunge, sombra, "silo") == "2 done, 0 under way, 1 failed"
    assert list(fake.waiting) == ["person-1"] and "person-1" not in capsys.readouterr().err


class FakeFides:
    """fides 2.78.2 as its source has it: a two-way pre-execution webhook, and ``resume`` of a paused request."""

    def __init__(self) -> None:
        self.status = {"pri_1": "in_processing"}

    def letter(self, action: str = "erasure") -> dict[str, Any]:
        return {
            "privacy_request_id": "pri_1",
            "privacy_request_status": "in_processing",
            "direction": "two_way",
            "callback_type": "pre",
            "identity": {"email": "ada@example.com", "phone_number": None, "external_id": "ada"},
            "policy_action": action,
            "privacy_request": {"id": "pri_1"},
            "timestamp": "2026-11-22T12:00:00",
        }

    def send(self, url: str, secret: str = "shared", action: str = "erasure") -> httpx.Response:
        headers = {"Authorization": secret, "reply-to": "/privacy-request/pri_1/resume", "reply-to-token": "jwe"}
        answer = httpx.post(url, json=self.letter(action), headers=headers, trust_env=False)
        if answer.status_code == 200 and answer.json()["halt"]:
            self.status["pri_1"] = "paused"
        return answer

    def __call__(self, call: httpx.Request) -> httpx.Response:
        if call.url.path != "/api/v1/privacy-request/pri_1/resume" or call.headers["authorization"] != "Bearer jwe":
            return httpx.Response(403)
        if json.loads(call.content).keys() - {"derived_identity"} or self.status["pri_1"] != "paused":
            return httpx.Response(400)
        self.status["pri_1"] = "in_processing"
        return httpx.Response(200, json={"id": "pri_1"})


@pytest.fixture
def bridge(expunge: Expunge, service: Service, tmp_path: Path) -> Iterator[tuple[FakeFides, str, Path]]:
    """The adapter on a port of this machine between the API and a fake of fides; its address and its folder."""
    adapter, fake = example("fides"), FakeFides()
    folder = tmp_path / "tokens"
    folder.mkdir()
    with service.database.write() as session:
        _, secret = add_endpoint(
            session, service.session_key, "default", "https://bridge.example/expunge", [*WebhookEvent]
        )
    with httpx.Client(base_url="https://fides", transport=httpx.MockTransport(fake)) as fides:
        server = adapter.serve(adapter.Bridge(expunge, fides, "shared", secret, folder), 0)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield fake, f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        server.server_close()


def deliver(service: Service, url: str) -> list[int]:
    """Send every delivery that there is to the adapter, signed as the scheduler signs; return the answers."""
    with service.database.read() as session:
        endpoint = session.scalars(select(WebhookEndpoint)).one()
        rows = session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.created_at)).all()
        at = (session.scalar(select(func.max(WebhookDelivery.created_at))) or 0) // 1_000_000
    said = []
    for row in rows:
        signed = webhook_signature(service.session_key, endpoint, row.id, at, row.payload)
        headers = {"webhook-id": row.id, "webhook-timestamp": str(at), "webhook-signature": signed}
        said.append(httpx.post(f"{url}/expunge", content=row.payload, headers=headers, trust_env=False).status_code)
    return said


def test_fides_waits_until_the_person_has_left_and_then_goes_on(
    bridge: tuple[FakeFides, str, Path], service: Service
) -> None:
    fake, url, folder = bridge
    live_model(service)
    assert fake.send(f"{url}/fides").json() == {"halt": True}
    assert fake.send(f"{url}/fides").json() == {"halt": True}, "sent again it is the same deletion"
    (request,) = requests(service)
    assert (request.case_id, request.status) == ("pri_1", "queued")
    assert deliver(service, url) == [204] and fake.status["pri_1"] == "paused", "accepted is not completed"
    (note,) = folder.iterdir()
    assert note.stat().st_mode & 0o777 == 0o600 and not re.search(r"\bada\b", note.read_text())
    complete(service)
    fake.status["pri_1"] = "in_processing"
    assert deliver(service, url)[-1] == 503 and list(folder.iterdir()), "fides does not take it yet"
    fake.status["pri_1"] = "paused"
    assert deliver(service, url)[-1] == 204
    assert fake.status["pri_1"] == "in_processing" and not list(folder.iterdir())
    assert deliver(service, url)[-1] == 204, "it may arrive twice"


def test_what_is_no_erasure_or_from_somebody_else_deletes_nobody(
    bridge: tuple[FakeFides, str, Path], service: Service
) -> None:
    fake, url, _ = bridge
    assert fake.send(f"{url}/fides", action="access").json() == {"halt": False}
    assert fake.send(f"{url}/fides", secret="guessed").status_code == 401
    for body in (b"", b"[]", b"{}", json.dumps(fake.letter() | {"identity": {}}).encode()):
        answer = httpx.post(f"{url}/fides", content=body, headers={"Authorization": "shared"}, trust_env=False)
        assert answer.status_code == 400
    forged = {"type": "deletion_request.completed", "data": {"case_id": "pri_1"}}
    assert httpx.post(f"{url}/expunge", json=forged, trust_env=False).status_code == 400
    assert requests(service) == []
