"""What the page tells of a request and of the log: phases, cases, who acted; and the test of a webhook."""

from __future__ import annotations

import re
import secrets
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access.api_keys import create_key, list_actors, name_actor
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.infra.db import now
from expunge_service.infra.tables import DeletionRequest, PhaseSeconds, Task, WebhookDelivery
from expunge_service.infra.time import DAY_SECONDS, SECOND
from expunge_service.models.counters import tally
from expunge_service.requests.status import settle
from expunge_service.requests.webhooks import WebhookEvent, add_endpoint
from tests.service.conftest import Login
from tests.service.worlds import live_model, publish

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def sent(client: TestClient, service: Service, who: str, **body: Any) -> str:
    with service.database.write() as session:
        key = create_key(session, service.pepper, label=who, scopes=["deletions:write"])
    headers = {"Authorization": f"Bearer {key.secret}", "Idempotency-Key": secrets.token_hex(8)}
    return str(client.post("/v1/deletion-requests", json=body, headers=headers).json()["id"])


def token_of(page: str) -> str:
    return page.partition('name="token" value="')[2].partition('"')[0]


def test_a_request_shows_its_phases_and_the_unlearning_as_one(login: Login, service: Service) -> None:
    model = live_model(service)
    api = login()
    request = sent(api, service, "the helpdesk", subject_id="ada")
    assert "Phases" not in api.get(f"/console/requests/{request}").text
    version = publish(service, model, b"two", samples=1)
    with service.database.write() as session:
        task = session.scalars(select(Task)).one()
        task.status, task.samples, task.version_id, task.method = "completed", 1, version.id, "recollection"
        task.completed_at = now(session)
        settle(session, [request])
        facts = {"model_id": model.id, "version_id": version.id, "method": "recollection", "created_at": 1}
        for phase, seconds in (("claim", 2.0**-8), ("load", 2.0**-5), ("unlearn", 0.25), ("store", 2.0**-6)):
            session.add(PhaseSeconds(phase=phase, seconds=seconds, **facts))
    publish(service, model, b"three")
    for _ in range(2):
        tally(service.database)
    page = api.get(f"/console/requests/{request}").text
    row = '<td data-label="Phase">forget, refine and certify</td><td data-label="At most">0.25 s</td>'
    assert row in page, "kept when the version is tallied"
    assert ">load</td>" in page and ">0.03125 s</td>" in page and "unlearn<" not in page


def test_the_list_has_what_a_reader_needs_of_a_request_and_its_page_who_took_it_in(
    login: Login, service: Service
) -> None:
    live_model(service)
    api = login()
    order = {"case_id": "DSR-2026/113", "regulation": "gdpr", "verified": False}
    first = sent(api, service, "the helpdesk", subject_id="ada", models=["digits"], **order)
    request = sent(api, service, "Grace", subject_id="bob", verified=False)
    with service.database.write() as session:
        session.get_one(DeletionRequest, first).due_at = now(session) + 30 * DAY_SECONDS * SECOND
    page = api.get("/console/requests").text
    assert re.findall(r'<th scope="col">(?:<span class="rest">)?(\w+)<', page) == [
        "Select", "Request", "Case", "Deadline", "Status", "Models", "Received",
    ]  # fmt: skip
    rows = {each: page[page.index(f"/console/requests/{each}") :].partition("</tr>")[0] for each in (first, request)}
    for shown in (
        ">DSR-2026/113</td>",
        ">in 29 d 23 h<",
        "GDPR",
        ">blocked<",
        "Not yet confirmed that",
        ">digits</td>",
    ):
        assert shown in rows[first], shown
    assert f'data-copy="{first}"' in rows[first] and ">every model</td>" in rows[request]
    assert "the helpdesk" not in page and "the helpdesk" in api.get(f"/console/requests/{first}").text
    assert "<dt>Taken in by</dt><dd>Grace</dd>" in api.get(f"/console/requests/{request}").text
    with service.database.write() as session:
        grace = next(each for each in list_actors(session) if each.name == "Grace")
        name_actor(session, grace, None)
    page = api.get(f"/console/requests/{request}").text
    assert "Grace" not in page and f"{grace.id[:8]}, no name" in page, "an erased name is gone from the page"
    assert "DSR-2026/113" not in page


def test_the_audit_page_says_who_acted(login: Login, service: Service) -> None:
    live_model(service)
    api = login()
    sent(api, service, "the helpdesk", subject_id="ada")
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    page = api.get("/console/audit?kind=request").text
    assert '<th scope="col">Who</th>' in page and "the helpdesk" in page
    assert "the helpdesk" not in api.get("/console/audit?kind=hold").text


def test_a_button_sends_a_test_to_a_webhook_that_is_in_use(login: Login, service: Service) -> None:
    api = login()
    with service.database.write() as session:
        endpoint = add_endpoint(session, service.session_key, "default", "https://hooks.example/", list(WebhookEvent))[
            0
        ].id
    place, test = f"/console/webhooks/{endpoint}", {"act": "test", "endpoint_id": endpoint}
    page = api.get(place).text
    assert "Send a test" in page
    answer = api.post("/console/act", data=test | {"token": token_of(page)}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, place)
    with service.database.read() as session:
        assert [each.kind for each in session.scalars(select(WebhookDelivery))] == ["webhook.test"]
    assert api.post("/console/act", data=test | {"token": "x"}).status_code == 403
    api.post("/console/act", data=test | {"act": "disable", "token": token_of(page), "sure": "yes"})
    assert "Send a test" not in api.get(place).text
