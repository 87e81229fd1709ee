"""Two walks through a whole life: one request through every state, and the worst day."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from standardwebhooks import Webhook

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from expunge_service.audit.verification import verify
from expunge_service.audit.witness import Witness
from expunge_service.certificates import issue
from expunge_service.infra.pseudonyms import new_id, sample_digest
from expunge_service.infra.settings import session_key
from expunge_service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    Consumer,
    DeletionRequest,
    Lease,
    Membership,
    Removal,
    Task,
)
from expunge_service.models import restore_guard
from expunge_service.models.retrain_plan import retrain_lease
from expunge_service.requests import intake
from expunge_service.requests.states import Status
from expunge_service.requests.webhooks import WebhookEvent, add_endpoint
from expunge_workers.scheduler.restore import restore
from expunge_workers.scheduler.run import LEASE, open_scheduler
from expunge_workers.scheduler.ssrf_guard import Outbound
from expunge_workers.scheduler.webhook_sender import WebhookSender
from tests.workers import meanwhile
from tests.workers.scheduler.test_restore import Snapshot, export, signer, snapshot
from tests.workers.scheduler.test_webhook_sender import Receiver, receiver
from tests.workers.training.test_retrain import ONE_UPDATE
from tests.workers.worlds import TENANT, World

__all__ = ["receiver", "snapshot"]
PATH = "/v1/deletion-requests"


@contextmanager
def http(world: World) -> Iterator[TestClient]:
    """Call as one actor, whose consumer the name ``web`` is."""
    with world.database.write() as session:
        actor = session.scalar(select(Consumer.actor_id))
        key = create_key(
            session, world.storage.pepper, label="test", scopes=list(Scope), tenant_id=TENANT, actor_id=actor
        )
    with TestClient(create_app(world.settings), headers={"Authorization": f"Bearer {key.secret}"}) as client:
        yield client


def ask(api: TestClient, person: str, verified: bool = True) -> str:
    order = {"subject_id": person, "regulation": "gdpr", "verified": verified}
    answer = api.post(PATH, json=order, headers={"Idempotency-Key": new_id()})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def stands(api: TestClient, request: str) -> tuple[str, str | None]:
    shown = api.get(f"{PATH}/{request}").json()
    return shown["status"], shown["models"][0]["reason"] if shown["models"] else shown["reason"]


def run_out_of_memory() -> None:
    raise MemoryError("cannot allocate the record of p1")


def kept(world: World) -> None:
    """What the scheduler does within a second or two."""
    scheduler = open_scheduler(world.settings)
    for _ in range(2):
        scheduler.tick(1)
    world.change(Lease, LEASE, expires_at=0)  # the next one must not wait for this one's lease
    scheduler.database.close()
    scheduler.keys.close()


@pytest.mark.both_engines
def test_one_request_through_every_state_and_each_step_is_on_record(world: World, receiver: Receiver) -> None:
    """It ends completed; beside it one is cancelled, and one that nobody could verify is rejected."""
    model_id = world.live(guarantee="proved")
    seen: set[str] = set()

    def stood(request: str) -> tuple[str, str | None]:
        found = stands(api, request)
        seen.add(found[0])
        return found

    with world.database.write() as session:
        _, secret = add_endpoint(session, session_key(world.settings), TENANT, receiver.url, list(WebhookEvent))
    with http(world) as api:
        request = ask(api, "p1", verified=False)
        assert stood(request) == ("blocked", "unverified") and world.claim(model_id) is None
        assert api.post(f"{PATH}/{request}/verify").status_code == 200
        assert stood(request) == ("queued", None)
        assert api.post(f"{PATH}/{request}/extend").status_code == 200
        job = world.claim(model_id)
        assert stood(request)[0] == "running"
        hold = api.post("/v1/holds", json={"subject_id": "p1", "reason": "court"}).json()["id"]
        world.update(job)  # type: ignore[arg-type]
        assert stood(request) == ("blocked", "legal_hold")
        assert api.delete(f"/v1/holds/{hold}").status_code == 200
        assert stood(request) == ("queued", None)
        meanwhile.HAPPENINGS.append(run_out_of_memory)
        world.work(model_id)
        assert stood(request) == ("queued", "failed")
        facts = (world.task(request).facts or {})["failed"]
        assert (facts["error"], facts["file"]) == ("MemoryError", "test_walks.py")
        world.expire_lease(model_id)
        world.work(model_id)
        assert stood(request) == ("completed", None)
        with world.database.write() as session:
            order = intake.Order(subject_id="p2")
            other = intake.accept(session, world.storage.pepper, TENANT, order, intake.Windows(3600)).request.id
        assert api.delete(f"{PATH}/{other}").status_code == 200 and stood(other)[0] == "cancelled"
        stranger = ask(api, "p3", verified=False)
        assert api.post(f"{PATH}/{stranger}/reject", json={"reason": "did not show who they are"}).status_code == 200
        assert stood(stranger)[0] == "rejected"
        assert seen == set(Status)
        kept(world)

        own = ["accepted", "blocked", "verified", "extended", "blocked", "queued", "completed"]
        entries = [json.loads(row.body) for row in sorted(world.rows_of(AuditEntry), key=lambda row: row.id)]
        told = [each["kind"] for each in entries if each["request"] == request]
        assert told == [*(f"request.{step}" for step in own), "certificate.issued"]
        told.remove("certificate.issued")
        kinds = [each["kind"] for each in entries]
        assert kinds.count("update.claimed") == 3, "running: one entry for everybody in the claim"
        assert all(request in each["requests"] for each in entries if each["kind"] == "update.claimed")
        assert {"attempt.failed", "hold.placed", "hold.lifted", "version.published", "keys.destroyed"} <= set(kinds)
        for ended, steps in ((other, ["accepted", "cancelled"]), (stranger, ["accepted", "blocked", "rejected"])):
            assert [each["kind"] for each in entries if each["request"] == ended] == [f"request.{s}" for s in steps]

        events = api.get("/v1/events", params={"seconds": 0}, headers={"Last-Event-ID": "-1"}).text
        if not events:
            events = api.get("/v1/events", params={"seconds": 0}, headers={"Last-Event-ID": "0"}).text
        assert all(f"event: request.{step}" in events for step in own[1:])
        for kind in ("version.published", "request.cancelled", "request.rejected"):
            assert f"event: {kind}" in events

        webhook_sender = WebhookSender(world.database, session_key(world.settings), Outbound(loopback=True), 0.05)
        while webhook_sender.round():
            pass
        news = [Webhook(secret).verify(body.decode(), headers) for _, headers, body in receiver.seen]
        told_of = [(each["type"], each["data"].get("id"), each["data"].get("reason")) for each in news]
        held = [(each, why) for kind, each, why in told_of if kind == "deletion_request.blocked"]
        assert sorted(held) == sorted([(request, "unverified"), (request, "legal_hold"), (stranger, "unverified")])
        sent = Counter(kind for kind, *_ in told_of)
        assert sent["deletion_request.completed"] == sent["model_version.published"] == sent["certificate.issued"] == 1
        assert (sent["deletion_request.cancelled"], sent["deletion_request.rejected"]) == (1, 1)

        envelope = api.get(f"{PATH}/{request}/certificate").json()
        predicate = issue.verify(envelope, signer(world).verifier)["predicate"]
        assert [each["kind"] for each in predicate["audit"]["entries"] if each["body"]] == told
        assert "version.published" in {each["kind"] for each in predicate["audit"]["entries"]}
        assert predicate["first_due_at"] < predicate["due_at"] and predicate["extended_at"]
        for ended in (other, stranger):
            assert api.get(f"{PATH}/{ended}/certificate").status_code == 409, "nothing was forgotten"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_worst_day(world: World, snapshot: Snapshot) -> None:
    """A consumer serves an old version; somebody was deleted by mistake; a hold comes mid-run; the budget ends with a
    queue; the database is put back from an old backup; the worker runs out of memory. Nobody is lost, nobody returns
    unasked, nothing is spent twice."""
    model_id = world.live(guarantee="proved", complete_when="served", fallback="retrain", **ONE_UPDATE)
    with http(world) as api:
        assert api.put("/v1/models/m/consumers/web", json={"version": 1}).status_code == 200
        mistake = ask(api, "p0")
        world.work(model_id)
        assert stands(api, mistake) == ("running", "awaiting_consumers"), "the consumer serves an old version"
    old = snapshot(world)

    with http(world) as api:
        assert api.put("/v1/models/m/consumers/web", json={"version": 2}).status_code == 200
        kept(world)
        assert stands(api, mistake)[0] == "completed"
        lift = api.post(f"{PATH}/{mistake}/lift", json={"reason": "deleted by mistake"})
        assert lift.status_code == 200, lift.text
        held, gone = ask(api, "p1"), ask(api, "p2")
        job = world.claim(model_id)
        hold = api.post("/v1/holds", json={"subject_id": "p1", "reason": "court"}).json()["id"]
        world.update(job)  # type: ignore[arg-type]
        assert stands(api, held) == ("blocked", "legal_hold") and world.head(model_id).number == 3
        assert world.model(model_id).status == "exhausted"
        queue = [ask(api, "p3"), ask(api, "p4")]
        assert {stands(api, each)[0] for each in queue} == {"queued"}
        head, lines = export(world)
        spent, forgotten = world.generation(model_id).spent, positions(world)

    report = restore(old.storage, old.limits.lease_seconds, signer(old), [(head, lines)])
    assert (report.versions, report.requests) == (["m/3"], [gone])
    assert (sorted(report.requests_lost), report.holds_lost) == (sorted([held, *queue]), [])
    assert (old.generation(model_id).spent, positions(old)) == (spent, forgotten)

    with http(old) as api:
        refused = api.post(PATH, json={"subject_id": "p3"}, headers={"Idempotency-Key": new_id()})
        assert (refused.status_code, refused.json()["code"]) == (503, "read_only")
        with old.database.write() as session:
            assert restore_guard.confirm(session, TENANT, Witness(old.storage.store.folder)) is not None
        # the hold was placed after the backup, and the log brings it back
        again = {person: ask(api, person) for person in ("p1", "p3", "p4")}
        assert api.put("/v1/models/m/consumers/web", json={"version": 3}).status_code == 200
        kept(old)
        assert {stands(api, each)[0] for each in (mistake, gone)} == {"completed"}

        meanwhile.HAPPENINGS.append(run_out_of_memory)
        old.work(model_id)
        assert "attempt.failed" in old.kinds() and old.head(model_id).number == 3
        assert {stands(api, each)[0] for each in again.values()} == {"queued"}
        retrained(old, model_id)
        assert (old.head(model_id).number, old.generation(model_id).spent) == (4, 0)
        assert stands(api, again["p1"]) == ("blocked", "legal_hold")
        everyone = members(old, old.generation(model_id).id)
        assert everyone == {f"p{index}" for index in range(12)} - {"p2", "p3", "p4"}, "p0 is back, p1 is kept"

        assert api.delete(f"/v1/holds/{hold}").status_code == 200
        old.expire_lease(model_id)
        old.work(model_id)
        assert api.put("/v1/models/m/consumers/web", json={"version": 5}).status_code == 200
        kept(old)
        assert {stands(api, each)[0] for each in (mistake, gone, *again.values())} == {"completed"}
        assert api.get(f"{PATH}/{again['p1']}").json()["models"][0]["samples"] == 3
    assert [version.number for version in old.versions(model_id)] == [1, 2, 3, 4, 5]
    newest, entries = export(old)
    assert verify(entries, newest, signer(old).verifier, [head]).size > len(lines), "no signed head is contradicted"
    ledger = sum(row.budget_cost for row in old.rows_of(BudgetEntry))
    assert ledger == spent + old.generation(model_id).spent
    assert {row.status for row in old.rows_of(Task)} == {"completed"}
    assert {row.status for row in old.rows_of(DeletionRequest)} == {"completed"}


def retrained(world: World, model_id: str) -> None:
    """The next notifications, as the sweep gives them: a failed attempt pauses the retrain's lease for two seconds."""

    world.change(Lease, retrain_lease(model_id), expires_at=0)
    world.expire_lease(model_id)
    world.work(model_id)


def positions(world: World) -> list[tuple[int, int, str]]:
    return sorted((row.generation_id, row.position, row.version_id) for row in world.rows_of(Removal))


def members(world: World, generation_id: int) -> set[str]:
    """Whose samples a generation was trained on."""
    with world.database.read() as session:
        here = set(session.scalars(select(Membership.sample_digest).where(Membership.generation_id == generation_id)))
    pepper = world.storage.pepper
    return {f"p{index}" for index in range(12) if sample_digest(pepper, TENANT, f"s{3 * index}") in here}
