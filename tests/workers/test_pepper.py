"""The pepper is changed: whoever was found before is found after, and nobody who was forgotten comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.access import session_cookie as sessions
from service.access.api_keys import Scope, create_key
from service.api.app import create_app
from service.cli import checks as doctor
from service.infra.settings import adopt_secret
from service.infra.tables import ApiKey, Hold, Membership, Model, SuppressionEntry, WebhookEndpoint
from service.requests import express, intake
from service.requests import legal_holds as holds
from service.requests.legal_holds import AlreadyForgotten
from service.requests.peppers import aware, needed
from service.requests.webhooks import pepper_of, public_key
from tests.workers.test_calibrate import ASKED as CALIBRATED
from tests.workers.test_switch import before, in_generation
from tests.workers.worlds import TENANT, World, open_world
from workers import doctor as sickbay
from workers.runtime.jobs import Preparation
from workers.scheduler.webhook_sender import claim as letters
from workers.training import run as prepare

READS = {"method": "newton", "min_guarantee": "proved"}
"""its updates read every retained sample"""


def changed(world: World, *, keep: bool = True) -> World:
    """The same installation with a new pepper; the old one is retired, or (``keep`` false) lost."""
    current = world.settings.pepper_file
    old = current.with_name(f"pepper.{world.storage.pepper.id}")
    old.write_text(current.read_text())
    old.chmod(0o600)
    adopt_secret(current)
    files = [*map(str, world.settings.retired_peppers), *([str(old)] if keep else [])]
    settings = world.settings.model_copy(update={"retired_pepper_files": ",".join(files)})
    return open_world(settings)


def found_again(world: World) -> World:
    """The lost pepper's file is named again."""
    files = sorted(map(str, world.settings.pepper_file.parent.glob("pepper.*")))
    return open_world(world.settings.model_copy(update={"retired_pepper_files": ", ".join(files)}))


def place(world: World, subject: str | None = None, sample: str | None = None) -> str:
    with world.database.write() as session:
        pepper = world.storage.pepper
        return holds.place(session, pepper, TENANT, subject_id=subject, sample_id=sample, reason="court").id


def done(world: World, request: str) -> tuple[str, int | None, str | None]:
    task = world.task(request)
    return task.status, task.samples, task.reason


def kept_subjects(world: World, model_id: str) -> int:
    with world.database.read() as session:
        query = select(Membership.subject_digest).where(Membership.generation_id == world.generation(model_id).id)
        return len(set(session.scalars(query)))


def test_a_model_prepared_under_the_old_pepper_goes_on_forgetting(world: World) -> None:
    """By subject and by sample, with a method that finds the retained samples again by their digests."""
    model_id = world.live(**READS)
    before = world.delete("p1")
    world.work(model_id)
    after = changed(world)
    one, two = after.delete("p2"), after.delete(samples=["s9", "s10", "s11"])
    after.work(model_id)
    assert [done(after, each) for each in (before, one, two)] == [("completed", 3, None)] * 3
    assert after.head(model_id).number == 3 and len(after.storage.pepper.every) == 2
    assert after.request(one).pepper_id == after.storage.pepper.id != after.request(before).pepper_id
    again = after.delete("p1")
    assert (after.request(again).status, after.request(again).reason) == ("queued", None)
    after.work(model_id)
    assert done(after, again) == ("completed", 0, "already_forgotten")


def test_whoever_was_forgotten_before_is_kept_out_of_a_model_that_is_registered_after(world: World) -> None:
    old = world.live(min_guarantee="proved")
    asked = world.delete("p1"), world.delete(samples=["s6", "s7", "s8"])
    world.work(old)
    stranger = world.stranger("p4")
    after = changed(world)
    late = after.delete("p5")
    after.work(old)
    refused = after.register(name="refused")
    after.work(refused)
    assert after.model(refused).status == "refused"
    assert all(each in (after.model(refused).reason or "") for each in (*asked, late))
    new = after.live(name="new", min_guarantee="proved", on_suppressed="leave_out")
    assert kept_subjects(after, new) == 12 - 3
    report = after.generation(new).report or {}
    kept_out = {each["request"]: each["samples"] for each in report["kept_out"]["requests"]}
    assert kept_out == dict.fromkeys((*asked, late), 3)
    after.verify(stranger)
    after.work(old)
    after.work(new)
    with after.database.read() as session:
        gone = {version.model_id: version.samples for version in (after.head(old), after.head(new))}
        rows = [
            (stone.request_id, stone.pepper_id, stone.subject_digest or stone.sample_digest)
            for stone in session.scalars(select(SuppressionEntry))
        ]
    assert gone == {old: 3, new: 3}, "a request of before that was verified after is carried out in both"
    assert len(rows) == len(set(rows)) == 2 * 6, (
        "every suppression entry has one sibling, however many preparations ran"
    )


def test_a_retrain_brings_nobody_back_and_finds_everybody_whom_a_hold_keeps(world: World) -> None:
    model_id = world.live(min_guarantee="proved", fallback="retrain")
    world.delete("p1")
    world.work(model_id)
    hold = place(world, "p3")
    after = changed(world)
    held, asked = after.delete("p3"), after.delete(samples=["s0"])  # part of a person: it takes a retrain
    after.work(model_id)
    after.work(model_id)
    generation, head = after.generation(model_id), after.head(model_id)
    assert (generation.manifest or {})["pepper_id"] == after.storage.pepper.id
    assert kept_subjects(after, model_id) == 12 - 1 and done(after, asked)[:2] == ("completed", 1)
    assert done(after, held) == ("blocked", None, "legal_hold") and head.method == "retrain"
    with after.database.write() as session:
        assert holds.lift(session, session.get_one(Hold, hold)) == [model_id]
        assert all(row.lifted_at for row in session.scalars(select(Hold)))
    after.work(model_id)
    assert done(after, held) == ("completed", 3, None)


def test_whoever_is_forgotten_while_a_candidate_under_the_new_pepper_is_trained_and_held_since_does_not_come_back(
    world: World,
) -> None:
    model_id = world.live(
        "convex",
        "newton",
        fallback="retrain",
        **{**CALIBRATED, "calibration": {**CALIBRATED["calibration"], "sizes": [1]}},
    )
    world.live(name="other")  # where the hold finds something to keep
    together = world.delete("p5", models=("m",)), world.delete("p6", models=("m",))
    world.work(model_id)
    after = changed(world)
    job = after.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains

    def forget_and_hold() -> None:
        gone = after.delete("p2", models=("m",))
        after.work(model_id)
        assert after.request(gone).status == "completed"
        place(after, "p2")

    prepare.prepare(after.process, job, before("unlearn", after, forget_and_hold))
    assert {after.request(each).status for each in together} == {"completed"}
    generation = after.generation(model_id)
    assert (generation.id, (generation.manifest or {})["pepper_id"]) == (job.generation_id, after.storage.pepper.id)
    assert not in_generation(after, generation.id, "s6")
    assert in_generation(after, generation.id, "s9")


def test_holds_are_placed_and_checked_under_both(world: World) -> None:
    model_id = world.live(min_guarantee="proved")
    gone = world.delete("p1")
    world.work(model_id)
    after = changed(world)
    with pytest.raises(AlreadyForgotten), after.database.write() as session:
        pepper = after.storage.pepper
        useless = holds.place(session, pepper, TENANT, subject_id="p1", sample_id=None, reason="court")
        holds.require_something_left(session, useless)
    hold = place(after, sample="s6")
    request = after.delete("p2")
    after.work(model_id)
    assert done(after, request) == ("blocked", None, "legal_hold")
    assert {(row.id == hold, row.twin_of) for row in after.rows_of(Hold)} == {(True, None), (False, hold)}
    assert gone in json.dumps([row.request_id for row in after.rows_of(SuppressionEntry)])


def test_a_pepper_that_is_not_configured_holds_what_it_would_match_and_the_doctor_names_it(world: World) -> None:
    model_id = world.live(**READS)
    world.delete("p1")
    world.work(model_id)
    lost = changed(world, keep=False)
    old = world.storage.pepper.id
    assert aware(world.database, world.storage.pepper).alone
    assert not aware(lost.database, lost.storage.pepper).alone, "the fast way asks no generation for its pepper"
    request = lost.delete("p2")
    assert lost.request(request).status == "queued", "nobody can tell that the model does not hold them"
    lost.work(model_id)
    assert done(lost, request) == ("blocked", None, "pepper_missing")
    again = lost.register(name="again")
    lost.work(again)
    assert lost.model(again).status == "refused" and old in (lost.model(again).reason or "")
    told = [each for each in doctor.examine(lost.settings) if each.name == "pepper"]
    assert [each.well for each in told] == [False]
    assert f"36 rows of memberships, 1 rows of suppressions were made under pepper {old}" in told[0].what
    assert "EXPUNGE_RETIRED_PEPPER_FILES" in told[0].hint
    seen = next(each for each in sickbay.examine(lost.settings) if each.name == "generation of m")
    assert not seen.well and old in seen.what
    back = found_again(lost)
    second = back.delete("p2")
    back.work(model_id)
    with back.database.write() as session:
        holds.retry(session, back.request(request))
    back.work(model_id)
    assert done(back, second) == ("completed", 3, None)
    assert done(back, request) == ("completed", 0, "already_forgotten")


def test_a_release_whose_samples_were_named_under_a_lost_pepper_is_held(world: World) -> None:
    """The request came in before the pepper was lost, so it is matched: what is missing are the samples' digests."""
    model_id = world.live(**READS)
    request = world.delete("p1")
    lost = changed(world, keep=False)
    lost.work(model_id)
    assert done(lost, request) == ("blocked", None, "pepper_missing") and lost.head(model_id).number == 1
    back = found_again(lost)
    with back.database.write() as session:
        holds.retry(session, back.request(request))
    back.work(model_id)
    assert done(back, request) == ("completed", 3, None)


def test_the_doctor_says_when_a_retired_pepper_can_be_dropped(world: World) -> None:
    model_id = world.live(min_guarantee="proved")
    asked = world.delete("p1")
    world.work(model_id)
    after = changed(world)

    def told() -> list[str]:
        return [each.what for each in doctor.examine(after.settings) if each.name == "pepper"]

    old = world.storage.pepper.id
    assert told() == [
        f"Retired pepper {old} is still needed by 1 rows of deletion_requests, 36 rows of memberships, "
        "1 rows of suppressions."
    ]
    assert asked
    after.live(name="new", on_suppressed="leave_out")
    with after.database.read() as session:
        left = needed(session, after.storage.pepper)[old]
    assert left == {"deletion_requests": 1, "memberships": 36}, "the suppression entry has its sibling"
    with after.database.write() as session:
        session.get_one(Model, model_id).status = "retired"
        session.execute(Membership.__table__.delete().where(Membership.pepper_id == old))
        for row in session.scalars(select(intake.DeletionRequest)):
            row.pepper_id = after.storage.pepper.id
    assert told() == [f"Retired pepper {old} is needed by no row: drop it, and restart every process."]


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with world.database.write() as session:
        key = create_key(session, world.storage.pepper, label="test", scopes=list(Scope), tenant_id=TENANT).secret
    with TestClient(create_app(world.settings), headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


def test_keys_webhooks_openings_and_idempotency_keys_of_before_go_on_and_sessions_do_not(
    world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = client
    used: list[bool] = []
    fast = express.accept
    monkeypatch.setattr(express, "accept", lambda *a, **k: used.append((found := fast(*a, **k)) is not None) or found)
    model_id = world.live(min_guarantee="proved")
    hook = api.post("/v1/webhooks", json={"url": "https://hooks.example.com/x"}).json()
    order = {"json": {"subject_id": "p1"}, "headers": {"Idempotency-Key": "one"}}
    first = api.post("/v1/deletion-requests", **order)
    assert first.status_code == 202 and used == [True], "one pepper: the fast way"
    world.work(model_id)
    after = changed(world)
    with after.database.read() as session:
        key_id = session.scalars(select(ApiKey.id)).one()
        cookie = sessions.begin(session, world.storage.pepper, key_id)
        assert sessions.open_session(session, world.storage.pepper, cookie) is not None
        assert sessions.open_session(session, after.storage.pepper, cookie) is None, "whoever stole it could forge one"
    with TestClient(create_app(after.settings), headers=dict(api.headers)) as then:
        replayed = then.post("/v1/deletion-requests", **order)
        assert (replayed.status_code, replayed.json()) == (202, first.json())
        assert (
            then.post("/v1/deletion-requests", json={"subject_id": "p2"}, headers=order["headers"]).status_code == 422
        )
        assert then.get(f"/v1/webhooks/{hook['id']}").json()["public_key"] == hook["public_key"]
        cost = then.post("/v1/deletion-requests/estimate", json={"subject_id": "p2"}).json()
        assert cost["samples"] == 3
        other = then.post("/v1/deletion-requests", json={"subject_id": "p1"}, headers={"Idempotency-Key": "two"}).json()
        assert then.get(f"/v1/deletion-requests/{other['id']}/related").json()["data"] == [first.json()["id"]]
        assert used == [True, False, False, False], "several peppers: the plain way"
    [letter, *_] = letters(after.database, after.storage.pepper)
    assert letter.headers["webhook-signature"].startswith("v1,")
    with after.database.read() as session:
        endpoint = session.scalars(select(WebhookEndpoint)).one()
    assert pepper_of(after.storage.pepper, endpoint).id == world.storage.pepper.id
    assert public_key(after.storage.pepper, endpoint) == hook["public_key"]
