"""What a blocked request or model says to do can be done, by the call and by the command, and ends the wait."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_client.cli.client import _LISTS
from expunge_client.cli.main import app
from expunge_service.access.api_keys import Scope
from expunge_service.access.roles import SCOPES
from expunge_service.api.dependencies import Service
from expunge_service.cli.checks import by_reason
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Task, WebhookDelivery
from expunge_service.requests import reasons
from expunge_service.requests.reasons import Reason, Role, WayOut
from expunge_service.requests.status import settle
from tests.harness.ways_out import Follow, by_call, by_command, run
from tests.service.conftest import Login
from tests.service.worlds import live_model

EVERY = {id(each): each for each in vars(reasons).values() if isinstance(each, WayOut)} | {
    id(step): step for reason in Reason for step in reason.steps
}
STEPS = sorted(
    {(each.method, each.path, each.command): each for each in EVERY.values()}.values(), key=lambda e: e.command
)
IDS = {"request": ["0" * 32], "model": ["digits"], "hold": ["1" * 32], "earlier": ["2" * 32]}
PATH = "/v1/deletion-requests"
ROOT = Path(__file__).parents[3]
VALUES = {"CONSUMER": "web", "TEXT": "not the person", "ID": "ada", "NUMBER": 0.5, "RECIPE": "digits", "MODEL": "new"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"large_request": 2})


@pytest.fixture(params=["call", "command"])
def follow(request: pytest.FixtureRequest, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Follow:
    return by_call(client) if request.param == "call" else by_command(client, monkeypatch)


def test_every_reason_that_waits_has_steps_and_no_other_has() -> None:
    with_steps = {reason for reason in Reason if reason.remedy and reason.remedy.steps}
    assert with_steps == {reason for reason in Reason if reason.remedy} - {Reason.IN_HOLDOUT}
    assert {reason for reason in Reason if reason.shows} == {Reason.ALREADY_DELETED, Reason.NOT_IN_NAMED_MODELS}
    situations = {
        Reason.LEGAL_HOLD: ["open", "lift"],
        Reason.BUDGET_EXHAUSTED: ["retrain", "policy"],
        Reason.UNVERIFIED: ["verify", "reject"],
        Reason.LARGE: ["approve", "cancel"],
        Reason.FAILED: ["retry"],
        Reason.NEEDS_RETRAIN: ["retrain", "policy", "retry"],
        Reason.SAMPLES_CHANGED: ["retry", "retrain"],
    }
    assert {reason: [step.verb for step in reason.steps] for reason in situations} == situations


def test_each_step_is_a_route_and_a_command(api: TestClient) -> None:
    operations = api.get("/openapi.json").json()["paths"]
    assert len(STEPS) > 10
    for filled in (filled for step in STEPS for filled in step.filled(IDS)):
        assert "{" not in filled.path + filled.command
        sent = [part if part.isupper() else None for part in filled.path.split("/")]
        fits = [path for path in operations if len(path.split("/")) == len(sent) and _fits(path, filled.path)]
        assert any(filled.method.lower() in operations[path] for path in fits), filled
        _parse(shlex.split(filled.command)[1:])


def test_every_command_that_a_message_advises_is_a_command() -> None:
    """In reasons, findings, refusals and hints: whatever stands between backticks and begins with ``expunge``."""
    from tests.docs.test_site import require  # noqa: PLC0415 (loads every command)

    advised = {
        (path.name, command)
        for room in ("service", "workers", "unlearning")
        for path in sorted((ROOT / room).rglob("*.py"))
        for text in texts(ast.parse(path.read_text()))
        for command in re.findall(r"`expunge ([^`]+)`", text)
    }
    assert len(advised) > 40
    computed = {("checks.py", f"run {kind}") for kind in ("worker", "scheduler")} | {
        ("client.py", each) for each in _LISTS.values()
    }
    for _, command in {each for each in advised if not each[1].startswith(("VALUE", "run VALUE", "--"))} | computed:
        require(shlex.split(command))


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield every text of a module; a value in an f-string reads VALUE."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _fits(template: str, path: str) -> bool:
    pairs = zip(template.split("/"), path.split("/"), strict=True)
    return all(one.startswith("{") or one == other for one, other in pairs)


def _parse(words: list[str]) -> None:
    """Parse the words as a command does, without running it. Raises UsageError for an unknown command or option."""
    command: Any = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        context = click.Context(command, info_name=name, parent=context)
    command.parse_args(context, [str(VALUES.get(word, word)) for word in words])


def test_each_step_names_the_scopes_that_its_call_asks_for(
    api: TestClient, key_of: Callable[..., dict[str, str]]
) -> None:
    def status(step: Any, *scopes: Scope) -> int:
        headers = key_of(*scopes) | {"Idempotency-Key": "x"}
        return api.request(step.method, step.path, json=step.body, headers=headers).status_code

    for step in STEPS:
        (filled,) = step.filled(IDS)
        for chosen in product(*step.scopes):
            assert status(filled, *chosen) != 403, step
        for group in step.scopes:
            assert status(filled, *(scope for scope in Scope if scope not in group)) == 403, step


def test_the_role_that_a_remedy_names_can_carry_it_out(api: TestClient, key_of: Callable[..., dict[str, str]]) -> None:
    """A step that somebody else takes is said to be theirs."""
    reasons_with_remedy = [(reason, reason.remedy) for reason in Reason if reason.remedy and reason.steps]
    assert len(reasons_with_remedy) > 10
    for reason, remedy in reasons_with_remedy:
        headers = key_of(*SCOPES[remedy.by.key]) | {"Idempotency-Key": "x"}
        refused = []
        for step in reason.steps:
            for filled in step.filled(IDS):
                answer = api.request(filled.method, filled.path, json=filled.body, headers=headers)
                refused += [step] * (answer.status_code == 403)
        assert len(refused) < len(reason.steps), reason
        others = {role for role in Role if role in remedy.action and role is not remedy.by}
        able = {scope for role in others for scope in SCOPES[role.key]}
        assert all(able.intersection(group) for step in refused for group in step.scopes), (reason, refused)
        assert bool(refused) == bool(others), reason


def ask(client: TestClient, subject: str = "ada", **more: Any) -> str:
    order = {"subject_id": subject, **more}
    return str(client.post(PATH, json=order, headers={"Idempotency-Key": subject}).json()["id"])


def step_of(shown: dict[str, Any], verb: str) -> dict[str, Any]:
    (found,) = [each for each in shown["actions"] if each["verb"] == verb]
    return dict(found)


@pytest.mark.parametrize(("verb", "then"), [("verify", "queued"), ("reject", "rejected")])
def test_an_unverified_request_is_resolved_by_its_steps(
    client: TestClient, service: Service, follow: Follow, verb: str, then: str
) -> None:
    live_model(service)
    request = ask(client, verified=False)
    follow(step_of(client.get(f"{PATH}/{request}").json(), verb), TEXT="not the person")
    assert client.get(f"{PATH}/{request}").json()["status"] == then


@pytest.mark.parametrize(("verb", "then"), [("approve", "queued"), ("cancel", "cancelled")])
def test_a_large_request_is_resolved_by_its_steps(
    client: TestClient, service: Service, follow: Follow, verb: str, then: str
) -> None:
    live_model(service, people={"eve": ["e1", "e2", "e3"]})
    request = ask(client, "eve")
    shown = client.get(f"{PATH}/{request}").json()
    assert (shown["status"], shown["reason"]) == ("blocked", "large")
    assert shown["models"][0]["actions"] == shown["actions"]
    follow(step_of(shown, verb))
    assert client.get(f"{PATH}/{request}").json()["status"] == then


def test_a_legal_hold_is_opened_and_lifted_by_the_steps(client: TestClient, service: Service, follow: Follow) -> None:
    live_model(service)
    holds = [
        client.post("/v1/holds", json={"reason": "case 1"} | name).json()["id"]
        for name in ({"subject_id": "ada"}, {"sample_id": "ada-2"}, {"subject_id": "bob"})
    ]
    request = ask(client)
    block(service, request, Reason.LEGAL_HOLD)
    shown = client.get(f"{PATH}/{request}").json()
    lifts = [each for each in shown["actions"] if each["verb"] == "lift"]
    assert sorted(each["path"] for each in lifts) == sorted(f"/v1/holds/{hold}" for hold in holds[:2])
    for each in shown["actions"]:
        follow(each)
    assert client.get(f"{PATH}/{request}").json()["status"] == "queued"


def block(service: Service, request: str, reason: str) -> None:
    with service.database.write() as session:
        for task in session.scalars(select(Task).where(Task.request_id == request)):
            task.status, task.reason = "blocked", reason
        settle(session, [request])


@pytest.mark.parametrize(
    ("reason", "verbs"),
    [
        (Reason.LEGAL_HOLD, {"open", "lift"}),
        (Reason.BUDGET_EXHAUSTED, {"retrain", "policy"}),
        (Reason.LARGE, {"approve", "cancel"}),
    ],
)
def test_a_retry_that_cannot_help_is_refused_with_the_steps_that_do(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, reason: Reason, verbs: set[str]
) -> None:
    live_model(service)
    client.post("/v1/holds", json={"subject_id": "ada", "reason": "case 1"})
    request = ask(client)
    block(service, request, reason)
    before = client.get(f"{PATH}/{request}").json()
    refused = client.post(f"{PATH}/{request}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "retry_cannot_help")
    assert refused.json()["actions"] == before["actions"] and {each["verb"] for each in before["actions"]} == verbs
    assert client.get(f"{PATH}/{request}").json() == before
    told = run(client, monkeypatch, "requests", "retry", request)
    assert told.exit_code == 1 and getattr(told.exception, "hint", "").count("\n") == len(before["actions"])
    assert all(each["command"] in told.exception.hint for each in before["actions"])  # type: ignore[union-attr]


def test_a_retry_takes_up_what_it_can_and_leaves_the_rest(client: TestClient, service: Service) -> None:
    live_model(service)
    live_model(service, name="letters")
    request = ask(client)
    with service.database.write() as session:
        one, other = session.scalars(select(Task).order_by(Task.id)).all()
        one.status, one.reason, other.status, other.reason = "blocked", Reason.LEGAL_HOLD, "blocked", Reason.FAILED
        settle(session, [request])
    assert client.post(f"{PATH}/{request}/retry").status_code == 200
    with service.database.read() as session:
        assert [task.status for task in session.scalars(select(Task).order_by(Task.id))] == ["blocked", "queued"]


def test_the_terminal_and_the_webhook_name_the_steps(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_model(service)
    client.post("/v1/webhooks", json={"url": "https://hooks.example.com", "kinds": ["deletion_request.blocked"]})
    hold = client.post("/v1/holds", json={"subject_id": "ada", "reason": "case 1"}).json()["id"]
    request = ask(client)
    block(service, request, Reason.LEGAL_HOLD)
    with service.database.read() as session:
        payload = session.scalars(select(WebhookDelivery.payload)).one()
    assert f"expunge holds lift {hold}" in payload and f'"path":"/v1/holds/{hold}"' in payload
    printed = run(client, monkeypatch, "requests", "show", request)
    assert "\n  do " in printed.output and f"expunge holds lift {hold}" in printed.output
    assert "(privacy officer)" in printed.output


def test_each_surface_says_the_same_sentence_and_remedy(
    client: TestClient,
    service: Service,
    login: Login,
    key_of: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """API, page, terminal and doctor with the values; alert, webhook and log, which have no reader, without."""
    caplog.set_level("INFO")
    live_model(service)
    client.post("/v1/webhooks", json={"url": "https://hooks.example.com", "kinds": ["deletion_request.blocked"]})
    request = ask(client)
    facts = {"cause": "recipe_raised", "error": "RuntimeError", "file": "fragile.py", "line": 9, "message": "ada"}
    with service.database.write() as session:
        for task in session.scalars(select(Task)):
            task.status, task.reason = "blocked", Reason.RECIPE_FAILED
            task.facts = reasons.stored(Reason.RECIPE_FAILED, facts)
        settle(session, [request])
    named, plain = "The recipe fails: RuntimeError at fragile.py:9.", "The recipe fails."
    remedy = "Correct it, then retry."
    shown = client.get(f"{PATH}/{request}").json()
    assert (shown["title"], shown["remedy"]["action"], shown["models"][0]["title"]) == (named, remedy, named)
    unable = client.get(f"{PATH}/{request}", headers=key_of("deletions:read")).json()
    assert unable["title"] == plain, "without models:read"
    console = login()
    page = console.get(f"/console/requests/{request}").text
    assert named in page and remedy in page and named in console.get("/console/requests").text
    assert page.index(">Retry</button>") < page.index("expunge requests retry"), "the first step is the button"
    printed = run(client, monkeypatch, "requests", "show", request).output
    assert named in " ".join(printed.split()) and remedy in printed
    finding = by_reason("generation of digits", Reason.RECIPE_FAILED, facts, "digits")
    assert (finding.what, finding.hint) == (named, remedy)
    metrics = client.get("/metrics").text
    assert f'what="{plain}"' in metrics and f'action="{remedy}"' in metrics and "RuntimeError" not in metrics
    with service.database.read() as session:
        payload = session.scalars(select(WebhookDelivery.payload)).one()
    assert f'"title":"{plain}"' in payload and "RuntimeError" not in payload and remedy in payload
    assert [each.why for each in caplog.records if each.message == "request blocked"] == [plain]  # type: ignore[attr-defined]
