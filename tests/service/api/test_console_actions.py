"""What is done from the pages: each action through the API's route, with its scopes, after a question where needed."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from expunge_service.access.api_keys import Caller, Scope
from expunge_service.api.dependencies import Service, allows
from expunge_service.api.views.requests import ActionView
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.console import acts, pages
from expunge_service.console.acts import ACTS
from expunge_service.console.visit import MADE
from expunge_service.console.ways import ways
from expunge_service.infra.tables import (
    ApiKey,
    AuditEntry,
    DeletionRequest,
    Generation,
    Hold,
    Model,
    Task,
    Version,
    WebhookEndpoint,
)
from expunge_service.models.consumers import report_consumer
from expunge_service.requests.reasons import Reason, actions
from expunge_service.requests.status import settle
from tests.service.api.test_console import token_in
from tests.service.conftest import Login
from tests.service.worlds import live_model, publish

KeyOf = Callable[..., dict[str, str]]
INPUT = re.compile(r'<input [^>]*name="([^"]+)" value="([^"]*)"')
ROUTES = [route for router in (*pages.ROUTERS, acts.router) for route in router.routes]
ACT = "/console/act"


def ask(client: TestClient, headers: dict[str, str], key: str = "k", **body: object) -> str:
    sent = client.post("/v1/deletion-requests", json=body, headers=headers | {"Idempotency-Key": key})
    return str(sent.json()["id"])


def block(service: Service, request: str, reason: str) -> None:
    with service.database.write() as session:
        session.execute(update(Task).where(Task.request_id == request).values(status="blocked", reason=reason))
        settle(session, [request])


def buttons(page: str) -> dict[str, dict[str, str]]:
    """The labels of a page's buttons that act, with what their forms send."""
    form = r'<form method="post" action="/console/act">((?:<input[^>]*>)*)<button[^>]*>([^<]+)</button></form>'
    found = re.findall(form, page)
    return {
        html.unescape(label): {name: html.unescape(value) for name, value in INPUT.findall(sent)}
        for sent, label in found
    }


@pytest.mark.parametrize("name", ACTS)
def test_an_action_asks_for_the_scopes_of_the_api_route(name: str, api: TestClient, key_of: KeyOf) -> None:
    """The rule is read off the route itself; here it is compared with what the API answers, scope by scope."""
    route = ACTS[name].route
    (place,) = [each for each in openapi_routes(api) if each.endpoint is route]
    method = next(iter(place.methods))
    body = None if place.body_field is None else {"reason": "x"}
    for scopes in ([scope] for scope in Scope):
        answer = api.request(method, filled(place.path), headers=key_of(*scopes), json=body)
        assert (answer.status_code != 403) == allows(route, Caller("default", "k", frozenset(scopes), "a", "a")), scopes
    assert allows(route, Caller("default", "k", frozenset(Scope), "a", "a"))


def openapi_routes(api: TestClient) -> list[Any]:
    from expunge_service.api.routes import keys, webhooks  # noqa: PLC0415
    from expunge_service.api.routes.models import consumers, lifecycle, retrains  # noqa: PLC0415
    from expunge_service.api.routes.requests import deletion_requests, holds  # noqa: PLC0415

    rooms = (deletion_requests, holds, lifecycle, retrains, consumers, keys, webhooks)
    return [route for room in rooms for route in room.router.routes]


def filled(path: str) -> str:
    names = {"name": "nobody", "consumer_id": "web", "delivery_id": "msg_" + "0" * 32}
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda name: names.get(name[1], "0" * 32), path)


def test_every_step_of_every_reason_has_a_place_on_the_page() -> None:
    """But for two, whose commands show: sending a new request and registering a model."""
    caller = Caller("default", "k", frozenset(Scope), "a", "a")
    typed = set()
    for reason in Reason:
        steps = actions(reason.steps, request=["0" * 32], model=["digits"], hold=["1" * 32], earlier=["2" * 32])
        for way in ways([ActionView(**step) for step in steps], caller):
            if not way.address:
                typed.add(way.verb)
                continue
            path = way.address.partition("#")[0]
            method = "POST" if way.posts else "GET"
            matching = [route for route in ROUTES if route.path_regex.fullmatch(path) and method in route.methods]  # type: ignore[attr-defined]
            assert matching, (reason, way)
            assert not way.posts or (path == ACT and dict(way.fields)["act"] in ACTS), way
    assert typed == {"delete", "register"} & typed and len(typed) <= 2


def test_a_step_is_offered_to_who_may_take_it_alone() -> None:
    steps = [ActionView(**step) for step in actions(Reason.LEGAL_HOLD.steps, hold=["1" * 32])]
    assert ways(steps, Caller("default", "k", frozenset({Scope.MODELS_ADMIN}), "a", "a")) == []
    assert len(ways(steps, Caller("default", "k", frozenset({Scope.DELETIONS_DECIDE}), "a", "a"))) == 2


def test_a_request_under_a_hold_is_ended_by_what_its_page_says(
    login: Login, api: TestClient, key_of: KeyOf, service: Service
) -> None:
    live_model(service)
    request = ask(api, key_of(), subject_id="ada")
    client = login()
    token = token_in(client.get("/console/holds").text)
    placed = client.post("/console/holds", data={"token": token, "subject_id": "ada", "reason": "a lawsuit"})
    assert "Deletions that it touches are blocked" in placed.text and not re.search(r"\bada\b", placed.text)
    block(service, request, Reason.LEGAL_HOLD)
    page = client.get(f"/console/requests/{request}").text
    with service.database.read() as session:
        hold = session.scalars(select(Hold.id)).one()
    lift = {"act": "lift", "hold_id": hold, "token": token}
    assert buttons(page)["Lift the hold"] == lift and f"/console/holds#hold-{hold}" in page
    asked = client.post(ACT, data=lift).text
    assert "Lift the hold?" in asked and "badge in force" in client.get("/console/holds").text
    lifted = client.post(ACT, data=lift | {"sure": "yes"}).text
    assert "badge lifted" in lifted and "Lifted." in lifted
    assert "badge queued" in client.get(f"/console/requests/{request}").text


def test_an_exhausted_budget_is_answered_from_the_requests_page(
    login: Login, api: TestClient, key_of: KeyOf, service: Service
) -> None:
    live_model(service)
    request = ask(api, key_of(), subject_id="ada")
    block(service, request, Reason.BUDGET_EXHAUSTED)
    client = login()
    page = client.get(f"/console/requests/{request}").text
    offered = buttons(page)
    assert "Retry" not in offered and set(offered) >= {
        "Train digits again now", "Change the policy of digits: fallback to retrain",
    }  # fmt: skip
    train = offered["Train digits again now"]
    asked = client.post(ACT, data=train).text
    assert "no training of this model was timed yet" in asked and "It serves the request that waits, too." in asked
    planned = client.post(ACT, data=train | {"sure": "yes"}).text
    assert "A retrain is planned" in planned and "A retrain is planned or runs." in planned


def test_the_policy_is_changed_within_what_may_change(login: Login, service: Service) -> None:
    live_model(service)
    client = login()
    page = client.get("/console/models/digits").text
    sent = {"token": token_in(page), "act": "policy", "name": "digits"}
    done = client.post(ACT, data=sent | {"batch": "60", "max_accuracy_drop": "", "epsilon": "99"})
    assert "Changed." in done.text and 'name="batch" value="60"' in done.text
    with service.database.read() as session:
        policy = session.scalars(select(Model.policy)).one()
    assert policy["batch"] == 60 and policy.get("epsilon") != 99
    for wrong in ({"batch": "soon"}, {"batch": "-1"}, {"fallback": "guess"}):
        assert client.post(ACT, data=sent | wrong).status_code == 422, wrong
    assert login("models:read").post(ACT, data=sent).status_code == 403


def test_a_model_is_retired_after_a_question(login: Login, service: Service) -> None:
    live_model(service)
    client = login()
    retire = buttons(client.get("/console/models/digits").text)["Retire the model"]
    asked = client.post(ACT, data=retire).text
    assert "cannot be brought back" in asked and "badge live" in client.get("/console/models/digits").text
    done = client.post(ACT, data=retire | {"sure": "yes"}).text
    assert "badge retired" in done and "No version of it is served any more." in done


def test_the_deadline_is_extended_once(login: Login, api: TestClient, key_of: KeyOf, service: Service) -> None:
    live_model(service)
    request = ask(api, key_of(), subject_id="ada", regulation="gdpr")
    client = login()
    page = client.get(f"/console/requests/{request}").text
    assert "Extend the deadline" in buttons(page)
    sent = buttons(page)["Extend the deadline"] | {"sure": "yes"}
    done = client.post(ACT, data=sent).text
    assert "The deadline was extended on" in done and "Extend the deadline" not in buttons(done)
    refused = client.post(ACT, data=sent)
    assert refused.status_code == 409 and "the law allows it once" in refused.text
    assert refused.headers["content-type"].startswith("text/html"), "a refusal is a page"


def test_the_current_version_is_downloaded_by_who_may(login: Login, service: Service) -> None:
    model = live_model(service)
    publish(service, model, b"version two")
    client = login()
    page = client.get("/console/models/digits").text
    assert page.count("Download the checkpoint") == 1
    assert client.get("/console/models/digits/checkpoint").content == b"version two"
    with service.database.write() as session:
        for generation in session.scalars(select(Generation)):
            generation.manifest = {**(generation.manifest or {}), "suffix": "zip"}
    page = client.get("/console/models/digits").text
    assert re.search(r"Download the checkpoint</a> <span[^>]*>0\.0 kB, zip</span>", page)
    assert client.get("/console/models/digits/checkpoint").headers["content-type"] == "application/zip"
    facts = client.get("/console/models/digits/versions/1.json")
    assert facts.json()["number"] == 1 and "attachment" in facts.headers["content-disposition"]
    client = login("models:read")
    assert "Download the checkpoint" not in client.get("/console/models/digits").text
    assert client.get("/console/models/digits/checkpoint").status_code == 403


def test_a_person_is_found_and_their_id_is_nowhere(
    login: Login, api: TestClient, key_of: KeyOf, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    live_model(service)
    request = ask(api, key_of(), subject_id="ada")
    client = login()
    page = client.get("/console/people").text
    found = client.post("/console/people", data={"token": token_in(page), "subject_id": "ada"})
    assert request in found.text and "trained on the person now" in found.text and "digits" in found.text
    assert not re.search(r"\bada\b", f"{found.url} {found.text}{caplog.text}")
    nobody = client.post("/console/people", data={"token": token_in(page), "subject_id": "eve"}).text
    assert "No model knows the person." in nobody and "No request ever named the person." in nobody
    with service.database.read() as session:
        entries = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "people.searched")).all()
    assert len(entries) == 2 and not [each for each in entries if re.search(r"\bada\b", each)]
    assert client.get("/console/people", params={"subject_id": "ada"}).text.count("badge holds") == 0
    client = login("deletions:read")
    assert "/console/people" not in client.get("/console/requests").text
    assert client.post("/console/people", data={"token": token_in(page), "subject_id": "ada"}).status_code == 403


def test_searches_on_the_page_are_counted_like_those_of_the_api(login: Login, service: Service) -> None:
    client = login()
    sent = {"token": token_in(client.get("/console/people").text), "subject_id": "ada"}
    answers = [client.post("/console/people", data=sent).status_code for _ in range(200)]
    assert 429 in answers and answers[0] == 200


def test_a_silent_consumer_comes_before_a_known_old_one(login: Login, service: Service) -> None:
    model = live_model(service)
    publish(service, model, b"two")
    with service.database.write() as session:
        versions = {each.number: each for each in session.scalars(select(Version))}
        for name, number in (("one-new", 2), ("two-old", 1), ("three-silent", 2)):
            row = report_consumer(session, session.get_one(Model, model.id), name, versions[number], "actor")
            row.seen_at -= 3_600_000_000 if name == "three-silent" else 0
    for path in ("/console/consumers", "/console/models/digits"):
        page = login().get(path).text
        places = [page.index(name) for name in ("three-silent", "two-old", "one-new")]
        assert places == sorted(places) and "what it serves now is not known" in page, path
    client = login()
    token = token_in(client.get("/console/models/digits").text)
    remove = {"token": token, "act": "remove-consumer", "name": "digits", "consumer_id": "three-silent"}
    assert "serves the model no more" in client.post(ACT, data=remove).text
    assert "three-silent" not in client.post(ACT, data=remove | {"sure": "yes"}).text


def test_a_key_is_made_shown_once_and_revoked(login: Login, service: Service) -> None:
    client = login()
    token = token_in(client.get("/console/keys").text)
    made = client.post("/console/keys", data={"token": token, "label": "ci", "scope": ["models:read"]}).text
    secret = re.search(r'id="secret">(exp_[0-9a-f]{12}_[0-9a-f]{64})<', made)
    assert secret and secret[1] not in client.get("/console/keys").text
    listed = client.get("/console/keys").text
    key = re.findall(r'name="key_id" value="([0-9a-f]{32})"', listed)[-1]
    sure = {"token": token, "sure": "yes", "key_id": key}
    replaced = client.post(ACT, data=sure | {"act": "rotate"}).text
    assert 'id="secret"' in replaced
    done = client.post(ACT, data=sure | {"act": "revoke"}).text
    assert "badge revoked" in done
    assert client.post("/console/keys", data={"token": token, "label": "none"}).status_code == 422
    narrow = login("keys:admin")
    token = token_in(narrow.get("/console/keys").text)
    more = narrow.post("/console/keys", data={"token": token, "scope": ["models:admin"]})
    assert more.status_code == 403, "a key grants no more than it holds"


@pytest.mark.parametrize("made", ["key", "rotated", "webhook"])
def test_a_page_that_shows_a_secret_is_loaded_again_and_makes_no_second_one(
    login: Login, service: Service, made: str
) -> None:
    """The page was the answer to the form, so a reload sent the form again."""
    client = login()
    listed = client.get("/console/keys").text
    token, key = token_in(listed), re.findall(r'name="key_id" value="([0-9a-f]{32})"', listed)[-1]
    address, body = {
        "key": ("/console/keys", {"scope": ["models:read"]}),
        "rotated": (ACT, {"act": "rotate", "key_id": key, "sure": "yes"}),
        "webhook": ("/console/webhooks", {"url": "https://example.org/hook", "kind": ["model_version.published"]}),
    }[made]
    counted = (ApiKey, WebhookEndpoint)[made == "webhook"]
    with service.database.read() as session:
        before = len(session.scalars(select(counted)).all())
    answer = client.post(address, data={"token": token} | body, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/made")
    page = client.get("/console/made")
    secret = re.search(r'id="secret">([^<]+)<', page.text)
    assert secret and secret[1] not in str(answer.headers), "what the browser keeps meanwhile is encrypted"
    again = client.get("/console/made")
    assert secret[1] not in again.text and "It was shown once" in again.text
    with service.database.read() as session:
        assert len(session.scalars(select(counted)).all()) == before + 1


def test_a_secret_is_shown_to_the_session_alone_that_made_it(login: Login, api: TestClient, service: Service) -> None:
    client = login()
    sent = {"token": token_in(client.get("/console/keys").text), "scope": ["models:read"]}
    client.post("/console/keys", data=sent, follow_redirects=False)
    sealed = client.cookies[MADE]
    login()
    api.cookies.set(MADE, sealed)
    assert 'id="secret"' not in api.get("/console/made").text
    api.cookies.set(MADE, "forged")
    assert 'id="secret"' not in api.get("/console/made").text


def test_a_webhook_is_added_its_deliveries_shown_and_sent_again(
    login: Login, api: TestClient, key_of: KeyOf, service: Service
) -> None:
    client = login()
    token = token_in(client.get("/console/webhooks").text)
    sent = {"token": token, "url": "https://example.org/hook", "kind": ["deletion_request.completed"]}
    assert "whsec_" in client.post("/console/webhooks", data=sent).text
    ask(api, key_of(), subject_id="nobody")
    page = client.get("/console/webhooks").text
    place = re.findall(r'href="(/console/webhooks/[0-9a-f]{32})"', page)[0]
    deliveries = client.get(place).text
    assert "deletion_request.completed" in deliveries and "badge pending" in deliveries
    again = client.post(ACT, data=buttons(deliveries)["Send again"]).text
    assert "sent again within seconds" in again
    assert "badge disabled" in client.post(ACT, data=buttons(page)["Disable"] | {"sure": "yes"}).text
    for wrong in ("http://example.org", "https://", "x"):
        assert client.post("/console/webhooks", data=sent | {"url": wrong}).status_code == 422


def test_the_audit_page_shows_filters_proves_and_exports(
    login: Login, api: TestClient, key_of: KeyOf, service: Service
) -> None:
    request = ask(api, key_of(), subject_id="nobody")
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    client = login()
    page = client.get("/console/audit", params={"kind": "request"}).text
    assert "request.accepted" in page and "key.created" not in page
    assert "key.created" in client.get("/console/audit").text
    assert request[:8] in client.get("/console/audit", params={"request": request}).text
    index = re.findall(r'href="/console/audit/(\d+)"', page)[0]
    shown = client.get(f"/console/audit/{index}").text
    assert "lead to the signed head" in shown and 'class="said"' not in shown
    lines = [json.loads(line) for line in client.get("/console/audit.jsonl").text.splitlines()]
    assert "checkpoint" in lines[-1] and [line["index"] for line in lines[:-1]] == list(range(len(lines) - 1))
    assert not any("actor_name" in line for line in lines), "a file keeps a name that is erased here"
    with service.database.write() as session:
        session.execute(update(AuditEntry).where(AuditEntry.log_index == int(index)).values(body=AuditEntry.body + " "))
    edited = client.get(f"/console/audit/{index}").text
    assert "was edited or moved" in edited and "badge verified" not in edited
    other = login("audit:read", tenant_id="other")
    assert other.get(f"/console/audit/{index}").status_code == 404


def test_what_is_done_on_the_page_names_the_sessions_key(login: Login, service: Service) -> None:
    live_model(service)
    client = login()
    token = token_in(client.get("/console/holds").text)
    client.post("/console/holds", data={"token": token, "subject_id": "ada", "reason": "a lawsuit"})
    with service.database.read() as session:
        body = json.loads(session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "hold.placed")).one())
        key = session.scalars(select(ApiKey)).all()[-1]
    assert (body["actor"], body["actor_key"]) == (key.actor_id, key.id)


def test_a_refused_form_comes_back_with_what_was_typed(login: Login, service: Service) -> None:
    """And can be sent again from there. What was typed into the log-in form never comes back."""
    page = login(Scope.DELETIONS_DECIDE, Scope.DELETIONS_READ)
    typed = {
        "token": token_in(page.get("/console/holds").text),
        "subject_id": 'ada "<b>',
        "sample_id": "s",
        "reason": "x",
    }
    refused = page.post("/console/holds", data=typed)
    assert refused.status_code == 422 and "What you sent" in refused.text
    assert '<a href="/console/holds">Back to the page of the form</a>' in refused.text
    offered = {name: html.unescape(value) for name, value in INPUT.findall(refused.text)}
    assert offered == typed
    assert page.post("/console/holds", data=offered | {"sample_id": ""}, follow_redirects=False).status_code == 303
    with service.database.read() as session:
        assert len(session.scalars(select(Hold)).all()) == 1
    forged = page.post("/console/holds", data=typed | {"token": "another", "sample_id": ""})
    assert forged.status_code == 403 and not re.search(r"\bada\b", forged.text)
    many = page.post("/console/holds", data=typed | {f"field{n}": "typed" for n in range(30)})
    assert many.status_code == 422 and "typed" not in many.text
    endless = page.post("/console/holds", data=typed | {f"field{n}": "typed" for n in range(400)})
    assert endless.status_code == 422 and "at most 300 fields" in endless.text and "What you sent" not in endless.text
    for key in ("no-key-of-ours", "x" * 5000):
        assert key not in page.post("/console/login", data={"key": key}, headers={"Origin": "http://testserver"}).text


def test_nothing_is_done_without_the_sessions_token(login: Login, service: Service) -> None:
    """Every address that takes a form, with every scope and without the token."""
    client = login()
    exempt = {"/console/login", "/console/link"}
    forms = [route.path for route in ROUTES if "POST" in route.methods and route.path not in exempt]  # type: ignore[attr-defined]
    posts = [path.format(request_id="0" * 32) for path in forms]
    body = {"token": "0" * 64, "sure": "yes", "subject_id": "x", "reason": "x", "scope": "models:read", "id": "0" * 32}
    body |= {"url": "https://example.org", "kind": "budget.exhausted", "action": "verify", "name": "digits"}
    body |= {name: "0" * 32 for name in ("request_id", "hold_id", "key_id", "endpoint_id")}
    body |= {"consumer_id": "web", "delivery_id": "msg_" + "0" * 32}
    for path in posts:
        for act in ACTS if path == ACT else ("",):
            assert client.post(path, data=body | {"act": act}).status_code == 403, (path, act)
    with service.database.read() as session:
        assert session.scalars(select(Hold)).all() == [] and session.scalars(select(DeletionRequest)).all() == []
    assert len(posts) == 9


def test_a_preparation_is_cancelled_by_whom_it_is_shown_to_and_not_once_the_model_is_live(
    login: Login, api: TestClient, key_of: KeyOf, service: Service
) -> None:
    """One address retires both: without the state a click on the older page would end a model that is served."""
    api.post("/v1/models", json={"name": "new", "recipe": "digits"}, headers=key_of())
    client = login()
    cancel = buttons(client.get("/console/models/new").text)["Cancel the preparation"] | {"sure": "yes"}
    with service.database.write() as session:
        session.execute(update(Model).where(Model.name == "new").values(status="live"))
    assert client.post(ACT, data=cancel).status_code == 412
    with service.database.write() as session:
        session.execute(update(Model).where(Model.name == "new").values(status="preparing"))
    assert "The name is free again." in client.post(ACT, data=cancel).text
