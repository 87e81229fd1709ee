"""The status page over HTTP: who may see and do what, what it shows, and what it never lets through."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, select, update

from expunge_service.access.api_keys import revoke_key
from expunge_service.access.roles import SCOPES, KeyRole
from expunge_service.access.sessions import SESSION_SECONDS
from expunge_service.api.cookies import COOKIE
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate, record
from expunge_service.audit.self_check import check_log
from expunge_service.audit.signed_note import Signer
from expunge_service.console import charts, pages
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import (
    ApiKey,
    AuditEntry,
    DeletionRequest,
    Generation,
    LogCheck,
    Model,
    Task,
    TreeHead,
    Version,
)
from expunge_service.infra.time import SECOND, instant
from expunge_service.models.consumers import report_consumer
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from tests.service.conftest import Login
from tests.service.worlds import live_model, publish
from unlearning.accounting.certificate import DIFFERED
from unlearning.accounting.world import Enclosure, WorldRecord

ACT = "/console/act"


@pytest.fixture
def held(service: Service, api: TestClient, key_of: Callable[..., dict[str, str]]) -> str:
    """The id of a request with a deadline that is held."""
    model = live_model(service)
    body = {"subject_id": "ada", "regulation": "gdpr"}
    made = api.post("/v1/deletion-requests", json=body, headers=key_of() | {"Idempotency-Key": "k"}).json()
    with service.database.write() as session:
        session.execute(update(Task).where(Task.model_id == model.id).values(status="blocked", reason="failed"))
        settle(session, [made["id"]])
    return str(made["id"])


def token_in(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page)
    assert found
    return found[1]


def test_without_a_session_every_page_is_the_login(api: TestClient) -> None:
    routes = [route for router in pages.ROUTERS for route in router.routes]
    for route in routes:
        path, methods = route.path, route.methods  # type: ignore[attr-defined]
        if path in ("/console/login", "/console/link", "/console/static/{name}"):
            continue
        filled = re.sub(r"\{(\w+)\}", lambda name: FILLED.get(name[1], "0" * 32), path)
        for method in methods:
            answer = api.request(method, filled)
            assert answer.status_code == 401, path
            assert 'action="/console/login"' in answer.text
            assert "see who asked to be deleted, by when it must be done" in answer.text, "the log-in says what this is"
    assert len(routes) > 25


FILLED = {"name": "digits", "number": "1", "index": "1", "delivery_id": "msg_" + "0" * 32, "consumer_id": "web"}


@pytest.mark.parametrize("key", ["", "wrong-key", "exp_" + "0" * 12 + "_" + "0" * 64, "é" * 100])
def test_a_wrong_key_opens_nothing(api: TestClient, key: str) -> None:
    answer = api.post("/console/login", data={"key": key})
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert COOKIE not in answer.cookies
    assert key == "" or key not in answer.text


def test_another_sites_login_form_is_refused(api: TestClient) -> None:
    assert api.post("/console/login", data={"key": "x"}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_holds_no_secret(login: Login) -> None:
    answer = login().get("/")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_SECONDS}"} <= set(cookie.split("; "))
    assert "exp_" not in cookie


def test_the_cookie_stays_on_tls_where_there_is_tls(login: Login) -> None:
    """Its name then says that this host set it: one that another host of the domain set is not read."""
    client = login()
    plain = client.get("/").headers["set-cookie"]
    assert plain.startswith(f"{COOKIE}=") and "Secure" not in plain.split("; ")
    client.base_url = "https://testserver"
    assert client.get("/").status_code == 401 and COOKIE in client.cookies
    login()
    kept = client.get("/").headers["set-cookie"]
    assert kept.startswith(f"__Host-{COOKIE}=") and "Domain" not in kept
    assert {"Secure", "Path=/"} <= set(kept.split("; "))
    token = token_in(client.get("/").text)
    client.post("/console/logout", data={"token": token}, follow_redirects=False)
    assert f"__Host-{COOKIE}" not in client.cookies and client.get("/").status_code == 401


def test_every_page_forbids_inline_scripts_and_other_origins(login: Login, held: str) -> None:
    client = login()
    for path in ("/", "/console/models/digits", f"/console/requests/{held}", "/console/requests/x"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=|https?://", answer.text), path


def test_a_session_ends_with_its_hour_and_with_its_key(login: Login, service: Service) -> None:
    client = login()
    value = client.cookies[COOKIE]
    text, _, seal = value.rpartition(".")
    key_id, session_id, ends = text.split(".")
    for forged in (
        f"{key_id}.{session_id}.{int(ends) + 1}.{seal}",
        f"{'0' * 32}.{session_id}.{ends}.{seal}",
        "",
        "...",
    ):
        client.cookies.set(COOKIE, forged)
        assert client.get("/").status_code == 401, forged
        client.cookies.clear()
    client.cookies.set(COOKIE, value)
    assert client.get("/").status_code == 200
    with service.database.write() as session:
        revoke_key(session, key_id)
    assert client.get("/").status_code == 401


def test_a_session_is_over_after_an_hour_unless_a_page_is_opened(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge_service.access.sessions.SESSION_SECONDS", -1)
    assert login().get("/").status_code == 401
    monkeypatch.undo()
    client = login()
    assert "set-cookie" in client.get("/").headers
    assert "set-cookie" not in client.get("/", headers={"X-Refresh": "1"}).headers


def test_the_session_reads_events_with_its_keys_scopes_and_opens_nothing_else(login: Login, service: Service) -> None:
    with service.database.write() as session:
        record(session, "default", "request.accepted", request_id="r" * 32)
        record(session, "default", "version.published")
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    client = login("deletions:read")
    events = client.get("/v1/events", params={"seconds": 0}, headers={"Last-Event-ID": "-1"})
    assert "request.accepted" in events.text and "version.published" not in events.text
    assert login("audit:read").get("/v1/events").status_code == 403
    client = login()
    for path in ("/v1/models", "/v1/deletion-requests", "/v1/audit-log"):
        assert client.get(path).status_code == 401, path
    assert client.post("/v1/deletion-requests", json={"subject_id": "ada"}).status_code == 401


def test_forms_reach_the_console_alone(client: TestClient) -> None:
    answer = client.post("/v1/deletion-requests", data={"subject_id": "ada"}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (415, "content_type")
    assert client.post("/console/login", json={"key": "x"}).status_code == 415


def test_a_key_sees_what_it_may_read_alone(login: Login, held: str) -> None:
    overview = login("models:read").get("/").text
    assert "digits" in overview and held not in overview and "audit log" not in overview
    assert "may not read deletion requests" in overview
    overview = login("deletions:read").get("/").text
    assert held in overview and "may not read models" in overview and 'id="models"' not in overview
    client = login("audit:read")
    for path in ("/console/models/digits", f"/console/requests/{held}", f"/console/requests/{held}/certificate"):
        assert client.get(path).status_code == 403, path
    client = login(tenant_id="other")
    assert "/console/models/digits" not in client.get("/").text
    assert client.get("/console/models/digits").status_code == 404
    assert client.get(f"/console/requests/{held}").status_code == 404


@pytest.mark.both_engines
def test_the_overview_shows_what_is_late_held_and_spent(login: Login, held: str, service: Service) -> None:
    with service.database.write() as session:
        model = session.scalars(select(Model)).one()
        generation = session.get_one(Generation, model.generation_id)
        generation.spent = 9_000_000
        first = session.scalars(select(Version)).one()
        report_consumer(session, model, "web", first, "actor")
    publish(service, model, b"two")
    page = login().get("/").text
    assert "<strong>1</strong> blocked" in page and "<strong>0</strong> overdue" in page
    assert re.search(r'<span class="warn">1 left, 85.7 % spent</span>', page)
    assert "version 2" in page and "1 on an old version" in page
    assert re.search(r">web</a> <span[^>]*>serves version 1 of digits, current is 2", page)
    assert re.search(r"in (27|28|29|30) d", page)
    assert "Three attempts failed." in page


def test_the_inbox_shows_each_role_its_own_work(login: Login, held: str, client: TestClient) -> None:
    body = {"subject_id": "bob", "case_id": "C-7", "verified": False}
    unverified = client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": "u"}).json()["id"]
    found: dict[str, dict[str, str]] = {}
    for role in (KeyRole.PRIVACY, KeyRole.OPERATOR, KeyRole.VIEWER):
        page = login(*SCOPES[role]).get("/").text
        queue = page[page.index('<section id="queue"') : page.index("</section>", page.index('<section id="queue"'))]
        parts = re.split(r"<h2[^>]*>", queue)[1:]
        found[role] = {part.partition(" (")[0]: part for part in parts}
    privacy, operator, viewer = (found[role] for role in (KeyRole.PRIVACY, KeyRole.OPERATOR, KeyRole.VIEWER))
    assert unverified in privacy["Needs you"] and ">C-7</strong>" in privacy["Needs you"]
    assert ">Decide</a>" in privacy["Needs you"] and ">Decide</a>" not in operator["Needs you"]
    assert held in operator["Needs you"] and ">Retry</button>" in operator["Needs you"]
    assert unverified in operator["Waits for a colleague"]
    assert held in viewer["Waits for a colleague"] and unverified in viewer["Waits for a colleague"]
    assert "Nothing waits for you." in viewer["Needs you"]


def test_a_held_request_is_driven_on_by_who_may(login: Login, held: str, service: Service) -> None:
    client = login("deletions:read")
    page = client.get(f"/console/requests/{held}").text
    assert 'value="retry"' not in page
    sent = {"token": token_in(page), "request_id": held}
    assert client.post(ACT, data=sent | {"act": "retry"}).status_code == 403
    assert client.post(ACT, data=sent | {"act": "cancel"}).status_code == 403
    client = login("deletions:read", "models:admin")
    page = client.get(f"/console/requests/{held}").text
    assert 'name="act" value="retry"' in page and ">Retry</button>" in page
    sent = {"request_id": held, "act": "retry"}
    assert client.post(ACT, data=sent | {"token": "0" * 64}).status_code == 403
    after = client.post(ACT, data=sent | {"token": token_in(page)})
    assert after.status_code == 200 and "badge queued" in after.text
    assert client.post(ACT, data=sent | {"token": token_in(page)}).status_code == 409


@pytest.mark.parametrize(
    ("reason", "button"),
    [
        (Reason.LEGAL_HOLD, None),
        (Reason.BUDGET_EXHAUSTED, "Train digits again now"),
        (Reason.LARGE, "Approve"),
        (Reason.FAILED, "Retry"),
        (Reason.AWAITING_BATCH, "Do it now"),
    ],
)
def test_a_retry_is_offered_where_it_can_help_alone(
    login: Login, held: str, service: Service, reason: Reason, button: str | None
) -> None:
    with service.database.write() as session:
        session.execute(update(Task).values(reason=reason))
        session.execute(update(DeletionRequest).values(reason=reason))
    page = html.unescape(login().get(f"/console/requests/{held}").text)
    assert reason.says().partition(".")[0] in page and reason.remedy is not None and reason.remedy.action in page
    assert 'name="act" value="retry"' in page or button != "Retry"
    assert button is None or f">{button}</button>" in page or f">{button}</a>" in page


def test_a_request_is_cancelled_inside_its_window_by_who_may(login: Login, held: str, service: Service) -> None:
    client = login()
    assert "Cancel the request" not in client.get(f"/console/requests/{held}").text
    token = token_in(client.get("/").text)
    cancel = {"token": token, "act": "cancel", "request_id": held}
    assert client.post(ACT, data=cancel | {"sure": "yes"}).status_code == 409
    with service.database.write() as session:
        session.execute(update(Task).values(status="queued", reason=None, not_before=now(session) + 3_600_000_000))
        settle(session, [held])
    assert "Cancel the request" in client.get(f"/console/requests/{held}").text
    assert "Cancel the request" not in login("deletions:read").get(f"/console/requests/{held}").text
    client = login()
    cancel |= {"token": token_in(client.get("/").text)}
    asked = client.post(ACT, data=cancel)
    assert "Cancel the request?" in asked.text and "stays in the models" in asked.text
    assert "badge queued" in client.get(f"/console/requests/{held}").text, "asking changed something"
    after = client.post(ACT, data=cancel | {"sure": "yes"})
    assert after.status_code == 200 and "badge cancelled" in after.text
    assert "Cancelled. The person stays in the models." in after.text, "the page does not say what happened"
    assert "Cancelled. The person" not in client.get(f"/console/requests/{held}").text, "it says so twice"


@pytest.mark.both_engines
@pytest.mark.both_engines
def test_one_box_finds_case_request_model_and_digest(
    login: Login, held: str, service: Service, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("C-113", "twice", "twice"):
        body = {"subject_id": f"bob-{name}", "case_id": name}
        client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": new_id()})
    with service.database.read() as session:
        case = session.scalar(select(DeletionRequest.id).where(DeletionRequest.case_id == "C-113"))
        digest = session.scalars(select(Version.checkpoint)).one()
    visitor = login()
    token = token_in(visitor.get("/").text)

    def find(text: str) -> httpx.Response:
        return visitor.post("/console/find", data={"token": token, "text": text}, follow_redirects=False)

    leads = {
        f" {held.upper()} ": f"/console/requests/{held}",
        held[:8]: f"/console/requests/{held}",
        "C-113": f"/console/requests/{case}",
        "c-113": f"/console/requests/{case}",
        "Digits": "/console/models/digits",
        digest[:12]: "/console/models/digits#version-1",
        f"sha256:{digest}": "/console/models/digits#version-1",
    }
    assert {text: find(text).headers.get("location") for text in leads} == leads
    both = find("twice")
    assert both.status_code == 200 and both.text.count('data-label="Case">twice<') == 2
    for wrong in ("<script>", "0" * 32, "%", held[:3]):
        answer = find(wrong)
        assert answer.status_code == 200 and "No case, request, model or version is called" in answer.text
        assert "<script>" not in answer.text
    assert visitor.post("/console/find", data={"token": "0" * 64, "text": held}).status_code == 403
    secret = find("ada@example.com")
    assert 'action="/console/people"' in secret.text and 'value="ada@example.com"' in secret.text
    assert "ada@example.com" not in caplog.text, "a person may have been typed"


def test_the_box_reads_what_the_key_may_read_and_no_other_tenants(login: Login, held: str) -> None:
    for scopes, tenant in ((["models:read"], "default"), (["deletions:read", "models:read"], "acme")):
        visitor = login(*scopes, tenant_id=tenant)
        found = visitor.post(
            "/console/find", data={"token": token_in(visitor.get("/").text), "text": held[:8]}, follow_redirects=False
        )
        assert found.status_code == 200 and held not in found.text and "Search people" not in found.text


def test_an_unknown_address_is_answered_with_a_page_and_its_places(login: Login, api: TestClient) -> None:
    assert api.get("/console/nowhere").status_code == 401, "without a session it is the log-in"
    answer = login().get("/console/nowhere/at/all")
    assert answer.status_code == 404 and "There is no such page" in answer.text
    assert 'aria-label="Places"' in answer.text and 'id="find"' in answer.text
    assert login().get("/console/static/none.css").status_code == 404


def test_an_unknown_address_outside_the_page_is_a_page_for_a_browser_alone(login: Login, api: TestClient) -> None:
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = api.get("/requests", headers=html)
    assert answer.status_code == 401 and 'action="/console/login"' in answer.text
    answer = login().get("/requests", headers=html)
    assert answer.status_code == 404 and 'aria-label="Places"' in answer.text
    for path, headers in (("/requests", {}), ("/v1/nowhere", html)):
        answer = api.get(path, headers=headers)
        assert answer.status_code == 404 and answer.json()["code"] == "not_found", path
    assert api.post("/requests", headers=html | {"Content-Type": "application/json"}).json()["code"] == "not_found"


def test_a_refusal_has_the_places_and_a_form_of_another_site_gets_no_token(login: Login, held: str) -> None:
    visitor = login()
    for path in ("/console/requests/none", f"/console/requests/{'0' * 32}", f"/console/requests/{held}/letter"):
        answer = visitor.get(path)
        assert answer.status_code in (404, 409) and 'aria-label="Places"' in answer.text, path
    forged = visitor.post("/console/holds", data={"token": "another", "subject_id": "ada", "sample_id": "s"})
    form = forged.text[forged.text.index("What you sent") :]
    assert forged.status_code == 422 and 'value="another"' in form and not re.search(r'value="[0-9a-f]{64}"', form)


def test_five_places_hold_every_page_that_the_key_may_open(login: Login, held: str) -> None:
    visitor = login()
    page = visitor.get("/console/holds").text
    nav = page[page.index('aria-label="Places"') : page.index("</nav>")]
    assert re.findall(r">(\w+)</a>", nav) == ["Inbox", "Requests", "Models", "Record", "Settings"]
    assert re.search(r'aria-current="true">Requests<', nav) and 'aria-current="page">Legal holds<' in page
    for address in re.findall(r'href="(/[^"]*)"', nav):
        assert visitor.get(address).status_code == 200, address
    few = login("models:read").get("/").text
    nav = few[few.index('aria-label="Places"') : few.index("</nav>")]
    assert re.findall(r">(\w+)</a>", nav) == ["Inbox", "Models"]


def test_every_cell_of_a_list_has_its_label_for_a_phone(login: Login, held: str) -> None:
    visitor = login()
    for path in (
        "/console/requests",
        "/console/models",
        "/console/models/digits",
        "/console/keys",
        "/console/audit",
        f"/console/requests/{held}",
    ):
        page = visitor.get(path).text
        for table in re.findall(r"<table>.*?</table>", page, re.S):
            heads = re.findall(r'<th scope="col">(.*?)</th>', table)
            for row in re.findall(r"<tr[ >].*?</tr>", table[table.index("<tbody>") :], re.S):
                labels = re.findall(r'<td data-label="(.*?)"', row)
                assert labels == [each for each in heads if each in labels] and len(labels) >= len(heads) - 2, (
                    path,
                    row,
                )


def test_checked_tried_and_declared_stand_apart(login: Login, held: str, service: Service) -> None:
    claim = {"guarantee": "exact", "checked": ["this one"], "tried": ["that one"], "declared": ["another"]}
    with service.database.write() as session:
        session.execute(update(Version).values(claim=claim))
    page = login().get("/console/models/digits").text
    places = [
        page.index(words)
        for words in ("Checked by the service", "this one", "Tried on a few samples", "that one", "Declared", "another")
    ]
    assert places == sorted(places)


def test_versions_are_a_table_below_the_claim_of_the_newest(login: Login, held: str, service: Service) -> None:
    """An older version of another guarantee says which; its own claim is in its file."""
    with service.database.write() as session:
        session.execute(update(Version).values(claim={"guarantee": "exact", "statement": "first", "epsilon": 0.0}))
        model = session.scalars(select(Model)).one()
    claim = {"guarantee": "proved", "statement": "second", "epsilon": 1.25, "assumptions": ["this"]}
    publish(service, model, b"two", claim=claim, people=2, samples=20, holdout_accuracy=0.936)
    page = login().get("/console/models/digits").text
    versions = page[page.index('id="versions"') :]
    claimed, table = versions[: versions.index("<table>")], versions[versions.index("<table>") :]
    assert "Claim of version 2" in claimed and "second" in claimed and "this" in claimed and "first" not in versions
    heads = re.findall(r'<th scope="col">(.*?)</th>', table)
    assert heads[:5] == ["Version", "Date", "People deleted", "Accuracy", "Epsilon"]
    rows = [re.sub(r"<[^>]+>", " ", each).split() for each in re.findall(r"<tr id=.*?</tr>", table, re.S)]
    assert [row[:2] for row in rows] == [["2", "current"], ["1", "retired"]]
    assert {"2", "(20", "93.6", "1.25"} <= set(rows[0]) and "exact" in rows[1] and "exact" not in rows[0]


def test_a_figure_that_is_no_accuracy_has_its_metrics_name_and_no_percent(
    login: Login, held: str, service: Service
) -> None:
    with service.database.write() as session:
        session.execute(update(Generation).values(report={"metric": "minus_loss"}))
        model = session.scalars(select(Model)).one()
    publish(service, model, b"two", people=2, samples=20, holdout_accuracy=-3.4321)
    visit = login()
    for path in ("/console/models/digits", "/console/models"):
        page = visit.get(path).text
        assert "minus_loss -3.432" in page and "-343" not in page
    answer = visit.get("/console/models/digits/versions/2.json").json()
    assert (answer["metric"], answer["holdout_accuracy"]) == ("minus_loss", -3.4321)


@pytest.mark.parametrize(
    ("updates", "marked", "words"),
    [(3, "", "3 of 20 updates made"), (20, "bad", "20 of 20 updates made")],
)
def test_a_model_without_a_bound_shows_its_budgets_as_bars(
    login: Login, held: str, service: Service, updates: int, marked: str, words: str
) -> None:
    usage = {"first_version": 1, "updates": updates, "samples": 5, "people": 0}
    with service.database.write() as session:
        facts: dict[str, Any] = {"guarantee": "none", "budget": None, "budget_cost": 0, "epsilon": None, "delta": None}
        manifest = {"samples": 400, "rounds": 20}
        session.execute(update(Generation).values(report={"usage": usage}, manifest=manifest, **facts))
        session.execute(update(Version).values(holdout_accuracy=0.94))
        model = session.scalars(select(Model)).one()
    publish(service, model, b"two", people=2, samples=5, holdout_accuracy=0.936)
    page = login().get("/console/models/digits").text
    panel = page[page.index('id="budget-title"') : page.index('id="facts-title"')]
    assert f'value="{updates / 20}" aria-label="Used of the budget rounds"' in panel
    assert f'<span class="{marked}">{words}</span>' in panel
    assert 'value="0.0125" aria-label="Share forgotten"' in panel and "1.25 % of the samples forgotten" in panel
    assert "0.4 of 10 points given up" in panel
    page = login().get("/console/models").text
    cell = re.search(r'<td class="rest-of-row" data-label="Budget">(.*?)</td>', page, re.S)
    assert cell is not None and cell[1] == f'<span class="{marked}">{words}</span>'


def test_a_model_that_is_exact_on_the_operators_word_says_so(login: Login, held: str, service: Service) -> None:
    said = f"Not tried: {DIFFERED}, with deterministic algorithms."
    with service.database.write() as session:
        session.execute(update(Version).values(claim={"guarantee": "exact", "operators_word": True, "tried": [said]}))
    assert ", on your word: two runs differed</dd>" in login().get("/console/models/digits").text
    world = WorldRecord(Enclosure.LANDLOCK, "c" * 64).to_json()
    with service.database.write() as session:
        claim = {"guarantee": "exact", "operators_word": True, "tried": [], "world": world}
        session.execute(update(Version).values(claim=claim))
    assert ", on your word: walls: landlock alone</dd>" in login().get("/console/models/digits").text


def test_what_others_wrote_is_escaped(login: Login, held: str, service: Service) -> None:
    evil = '<img src=x onerror="alert(1)">'
    with service.database.write() as session:
        model = session.scalars(select(Model)).one()
        model.reason = evil
        session.execute(update(Version).values(claim={"guarantee": evil, "statement": evil, "assumptions": [evil]}))
        session.execute(update(Task).values(reason=evil, method=evil))
    for path in ("/", "/console/models/digits", f"/console/requests/{held}"):
        page = login().get(path).text
        assert "<img" not in page
        assert "&lt;img" in page


class Outline(HTMLParser):
    """Headings, landmarks, labelled inputs, and references to ids, of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if given.get("id"):
            self.ids.append(str(given["id"]))


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    return parsed


def test_pages_are_sound_for_a_screen_reader(login: Login, held: str) -> None:
    client = login()
    texts = [client.get(path).text for path in ("/", "/console/models/digits", f"/console/requests/{held}")]
    client.cookies.clear()
    for text in [*texts, client.get("/").text]:
        page = outline(text)
        assert page.headings[0] == 1 and page.headings.count(1) == 1
        assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
        assert len(page.ids) == len(set(page.ids))
        named = [given for _, given in page.tags if "aria-labelledby" in given]
        assert {each["aria-labelledby"] for each in named} <= set(page.ids)
        labels = {given.get("for") for tag, given in page.tags if tag == "label"}
        inputs = [given for tag, given in page.tags if tag in ("input", "select") and given.get("type") != "hidden"]
        bare = [each for each in inputs if each.get("id") not in labels and not each.get("aria-label")]
        assert all(each.get("type") == "checkbox" for each in bare), "only a checkbox may be inside its label"
        assert all(given.get("aria-label") or given.get("aria-hidden") for tag, given in page.tags if tag == "svg")
        assert ("html", {"lang": "en"}) in page.tags
        assert all(given.get("scope") for tag, given in page.tags if tag == "th")


def grow(service: Service, count: int) -> None:
    with service.database.write() as session:
        for place in range(count):
            record(session, "default", "hold.placed", hold=str(place))
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))


def edit(session: Any) -> None:
    session.execute(update(AuditEntry).where(AuditEntry.log_index == 1).values(body="{}"))


def remove(session: Any) -> None:
    session.execute(delete(AuditEntry).where(AuditEntry.log_index == 1))


def truncate(session: Any) -> None:
    session.execute(delete(AuditEntry).where(AuditEntry.log_index >= 3))
    session.execute(delete(TreeHead).where(TreeHead.size > 3))


def erase(session: Any) -> None:
    session.execute(delete(TreeHead))


def resign(session: Any) -> None:
    session.execute(update(TreeHead).values(note=func.replace(TreeHead.note, "expunge.local", "expunge.other")))


@pytest.mark.parametrize("harm", [edit, remove, truncate, erase, resign])
def test_a_log_that_was_tampered_with_is_shown(service: Service, harm: Callable[[Any], None], login: Login) -> None:
    client = login()
    verifier = Signer.of(service.settings).verifier
    assert "The log has no entry yet." in client.get("/").text
    grow(service, 3)
    assert "The log is checked within a minute." in client.get("/").text
    check_log(service.database, verifier)
    grow(service, 2)
    check_log(service.database, verifier)
    assert "Log verified to entry" in client.get("/").text and "audit log</span>" not in client.get("/").text
    assert "expunge_audit_log_verified 1.0" in client.get("/metrics").text
    with service.database.write() as session:
        harm(session)
    check_log(service.database, verifier)
    assert '<span class="value word">tampered</span>' in client.get("/").text
    assert "expunge_audit_log_verified 0.0" in client.get("/metrics").text


def test_a_check_that_is_hours_old_is_not_shown_as_verified(service: Service, login: Login) -> None:
    grow(service, 2)
    check_log(service.database, Signer.of(service.settings).verifier)
    with service.database.write() as session:
        session.execute(update(LogCheck).values(checked_at=LogCheck.checked_at - 2 * 3_600_000_000 - 1))
    assert '<span class="value word">not checked lately</span>' in login().get("/").text


def size(service: Service) -> int:
    """The size of the newest signed head."""
    with service.database.read() as session:
        return session.scalars(select(func.max(TreeHead.size))).one()


def test_the_page_says_to_which_entry_the_log_is_verified(service: Service, login: Login) -> None:
    client = login()
    grow(service, 3)
    check_log(service.database, Signer.of(service.settings).verifier)
    first = size(service)
    grow(service, 2)
    with service.database.write() as session:
        record(session, "default", "hold.placed", hold=new_id())  # in no head yet
    for path in ("/", "/console/audit"):
        assert f"verified to entry {first} of {first + 3} at <time" in client.get(path).text, path


def test_a_dossier_is_checked_when_it_is_made(service: Service, login: Login) -> None:
    client = login()
    assert "<dt>Audit log</dt><dd>empty</dd>" in client.get("/console/dossier").text
    grow(service, 1)
    check_log(service.database, Signer.of(service.settings).verifier)
    first = size(service)
    grow(service, 4)
    last = first + 4
    assert f"verified to entry {last} of {last} at <time" in client.get("/console/dossier").text
    assert f"verified to entry {first} of {last} at <time" in client.get("/").text, "nothing is stored"
    with service.database.write() as session:
        edit(session)
    assert f"tampered: One of the first {first} entries was edited" in client.get("/console/dossier").text


@pytest.mark.both_engines
def test_the_chart_of_deadlines_has_bars_on_calendar_days(
    service: Service, api: TestClient, key_of: Callable[..., dict[str, str]], login: Login
) -> None:
    """A deadline early tomorrow is tomorrow's, and one late today is today's, whatever the time of day is now."""
    for subject in ("ada", "bob", "cyd"):
        body = {"subject_id": subject, "regulation": "gdpr", "verified": False}
        api.post("/v1/deletion-requests", json=body, headers=key_of() | {"Idempotency-Key": subject})
    with service.database.write() as session:
        tomorrow = (now(session) // charts.DAY + 1) * charts.DAY
        moments = (tomorrow - SECOND, tomorrow + SECOND, tomorrow + charts.DAY - SECOND)
        for request, due_at in zip(session.scalars(select(DeletionRequest)).all(), moments, strict=True):
            request.due_at = due_at
    page = login().get("/").text
    first, most = re.findall(r"the first on ([^,]+), most \(2\) on ([^.]+)\.", page)[0]
    days = [instant(tomorrow + ahead * charts.DAY) for ahead in (-1, 0)]
    assert [first, most] == [f"{day.day} {day:%B %Y}" for day in days]


def test_an_open_request_without_a_deadline_is_amber_and_an_ended_one_is_not(
    service: Service, api: TestClient, key_of: Callable[..., dict[str, str]], login: Login
) -> None:
    body = {"subject_id": "ada", "verified": False}
    made = api.post("/v1/deletion-requests", json=body, headers=key_of() | {"Idempotency-Key": "k"}).json()["id"]
    client, address = login(), f"/console/requests/{made}"
    for path in ("/", "/console/requests", address):
        assert '<span class="warn">no deadline</span>' in client.get(path).text, path
    rejection = {"reason": "The letter was not from this person."}
    assert api.post(f"/v1/deletion-requests/{made}/reject", json=rejection, headers=key_of()).status_code == 200
    for path in ("/", "/console/requests", address):
        assert 'class="warn">no deadline' not in client.get(path).text, path
    assert '<span class="quiet">no deadline</span>' in client.get(address).text


def test_an_expired_key_ends_its_session(login: Login, service: Service) -> None:
    client = login()
    with service.database.write() as session:
        session.execute(update(ApiKey).values(expires_at=now(session)))
    assert client.get("/").status_code == 401


def test_logging_out_takes_the_cookie_away(login: Login) -> None:
    client = login()
    page = client.get("/").text
    assert client.post("/console/logout", data={"token": "x"}).status_code == 403
    assert client.post("/console/logout", data={"token": token_in(page)}).status_code == 401
    assert client.get("/").status_code == 401


def test_beside_the_remedies_of_a_refused_model_the_page_does_not_say_that_nothing_can_be_done(
    login: Login, service: Service
) -> None:
    """A2c: "The model is refused: nothing can be done about it" stood below three remedies."""
    model = live_model(service)
    with service.database.write() as session:
        session.execute(update(Model).values(status="refused", reason="The recipe fails. Correct it."))
    page = login().get(f"/console/models/{model.name}").text
    assert "expunge models add" in page and "nothing can be done" not in page
    assert "what can be done is at the top of this page" in page
    with service.database.write() as session:
        session.execute(update(Model).values(status="retired"))
    retired = login().get(f"/console/models/{model.name}").text
    assert "it is not trained again" in retired and "at the top" not in retired


def due_after(service: Service, request: str, days: int) -> None:
    """Let a completed request be due so many days after it was completed: a month has 28 to 31."""
    with service.database.write() as session:
        row = session.get_one(DeletionRequest, request)
        row.due_at = (row.completed_at or 0) + days * 86_400 * SECOND


def test_pages_say_when_the_models_were_done_and_not_that_the_law_is_met(
    login: Login, client: TestClient, service: Service
) -> None:
    """A2c: "met GDPR" stood beside requests whose person had not been answered."""
    live_model(service)
    body, key = {"subject_id": "zoe", "regulation": "gdpr"}, {"Idempotency-Key": "k"}
    made = client.post("/v1/deletion-requests", json=body, headers=key).json()
    console = login()
    addresses = ("/console/requests", f"/console/requests/{made['id']}", "/console/dossier", "/")
    due_after(service, made["id"], days=29)
    early = [console.get(address).text for address in addresses]
    assert all(re.search(r"\bmodels done 29 days before the deadline", page) for page in early[:2])
    due_after(service, made["id"], days=-3)
    late = [console.get(address).text for address in addresses]
    assert all("models done late, 3 days after the deadline" in page for page in late[:2])
    assert "in 1 the models were done after it" in late[2]
    for page in (*early, *late):
        assert not re.search(r"\b(met|missed)\b", re.sub("<option.*?</option>", "", page))
