"""What dies where: for each named crash point of reliability.md one death, the recovery, and what was wrong then."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import update

from expunge_client import Expunge, ExpungeError
from expunge_client.calls import Order
from expunge_service.app import create_app
from expunge_service.infra.db import Database
from expunge_service.infra.settings import session_key
from expunge_service.infra.tables import Heartbeat, Lease, TrainedPart, WebhookDelivery
from expunge_service.models.retrain_plan import retrain_lease
from expunge_service.requests.webhooks import WebhookEvent, add_endpoint, announce
from expunge_workers.scheduler.run import open_scheduler
from expunge_workers.scheduler.ssrf_guard import Outbound
from expunge_workers.scheduler.webhook_sender import WebhookSender
from tests.faults.invariants import Broken
from tests.faults.places import Place
from tests.workers.worlds import end_schedulers_lease

Death = Callable[[Place, str, Random], list[Broken]]
ORDERS = "/v1/deletion-requests"
EXHAUSTING: dict[str, Any] = {
    "guarantee": "proved",
    "epsilon": 1.0,
    "noise_std": 0.01,
    "max_distance": 0.0018,
    "fallback": "retrain",
}
"""a budget of two updates"""
CALIBRATED: dict[str, Any] = {
    "guarantee": "calibrated",
    "calibration": {"alpha": 0.2, "orders": 4, "sizes": [1, 2]},
    "max_distance": 0.03,
    "noise_std": 10,
}
SAMPLES_EACH = 3


def of_the_api(place: Place, point: str, dice: Random) -> list[Broken]:
    """Kill the API before the client gets its answer. The client repeats the call: one request, carried out once."""
    model_id = place.model()
    order: Order = {"subject_id": leaving(place, dice, 1)[0], "models": [place.name], "suppress": "named_models"}
    headers = {"Authorization": place.api.headers["Authorization"], "Idempotency-Key": f"{dice.random()}"}

    def post() -> None:
        with TestClient(create_app(place.world.settings)) as client:
            client.post(ORDERS, json=order, headers=headers)

    place.die(point, post)
    client = Expunge("http://testserver", headers["Authorization"].removeprefix("Bearer "), place.api._transport)
    try:
        ids = [client.delete(idempotency_key=headers["Idempotency-Key"], **order)["id"] for _ in range(2)]
    except ExpungeError as error:
        return [Broken("lost", f"the client gave up: {error}"), *place.wrong()]
    place.recover(model_id)
    doubled = [Broken("doubled", "one key made two requests")] * (ids[0] != ids[1])
    return doubled + not_forgotten(place, ids[:1]) + place.wrong()


def of_an_update(place: Place, point: str, dice: Random) -> list[Broken]:
    """Kill a worker while it forgets one to three people."""
    model_id = place.model()
    versions = len(place.world.versions(model_id))
    going = leaving(place, dice, dice.randint(1, 3))
    requests = [place.world.delete(person, models=(place.name,)) for person in going]
    place.worker_dies(point, model_id)
    place.recover(model_id)
    made = len(place.world.versions(model_id)) - versions
    found = [] if made == 1 else [Broken("doubled" if made else "lost", f"{point}: {made} versions were made")]
    return found + not_forgotten(place, requests) + place.wrong()


def of_an_update_with_rows(place: Place, point: str, dice: Random) -> list[Broken]:
    """Kill a worker while it forgets somebody by a recipe with rows: one part is left, that of the others."""
    name = next(place.names)
    model_id = place.world.configured(trial_seconds=0).live("with_rows", "retrain", name)
    request = place.world.delete(f"p{dice.randrange(12)}", models=(name,))
    place.worker_dies(point, model_id)
    place.recover(model_id)
    storage, generation = place.world.storage, place.world.generation(model_id).id
    parts = [part for part in place.world.rows_of(TrainedPart) if part.generation_id == generation]
    model = json.loads(bytes(storage.store.read(place.world.head(model_id).checkpoint)))
    found = [Broken("left_behind", f"{len(parts)} parts are kept")] * (len(parts) != 1)
    found += [Broken("lost", "the part of the version is gone")] * (not storage.private.holds(parts[0].result))
    found += [Broken("lost", f"the model is of {model['rows']} rows")] * (model["rows"] != 33)
    return found + not_forgotten(place, [request]) + place.wrong()


def of_a_preparation(place: Place, point: str, dice: Random) -> list[Broken]:
    """Kill a worker while it trains a model; somebody had asked to be forgotten before."""
    name = next(place.names)
    model_id = place.world.register(name=name, guarantee="proved")
    request = place.world.delete(f"p{dice.randrange(12)}", models=(name,))
    place.worker_dies(point, model_id)
    place.recover(model_id)
    return require_live(place, model_id) + not_forgotten(place, [request]) + place.wrong()


def of_work_units(place: Place, point: str, _: Random) -> list[Broken]:
    """Kill a worker in one of the work units of a preparation."""
    model_id = place.world.register("with_rows", "shards", next(place.names), options={"shards": 2})
    place.worker_dies(point, model_id)
    with place.world.database.write() as session:
        session.execute(update(Heartbeat).values(beat_at=0))  # as if the dead process had long been silent
    place.recover(model_id)
    return require_live(place, model_id) + place.wrong()


def of_a_retrain(place: Place, point: str, dice: Random) -> list[Broken]:
    """Kill a worker during a retrain, which an exhausted budget made necessary."""
    name = next(place.names)
    model_id = place.world.live(name=name, **EXHAUSTING)
    people = dice.sample([f"p{number}" for number in range(12)], 3)
    for person in people[:2]:
        place.world.delete(person, models=(name,))
        place.world.work(model_id)
    request = place.world.delete(people[2], models=(name,))
    place.worker_dies(point, model_id)
    with place.world.database.write() as session:
        dead = update(Lease).where(Lease.name == retrain_lease(model_id), Lease.expires_at > 0)
        session.execute(dead.values(expires_at=1))
    place.recover(model_id)
    return require_live(place, model_id) + not_forgotten(place, [request]) + place.wrong()


def of_a_calibration(place: Place, point: str, _: Random) -> list[Broken]:
    """Kill a worker while deletion orders are measured."""
    model_id = place.world.register("convex", "newton", next(place.names), **CALIBRATED)
    place.worker_dies(point, model_id)
    place.recover(model_id)
    return require_live(place, model_id) + place.wrong()


def of_the_scheduler(place: Place, point: str, dice: Random) -> list[Broken]:
    """Kill the scheduler while it purges a retired version, or while it extends the log."""
    model_id = place.model()
    request = place.world.delete(leaving(place, dice, 1)[0], models=(place.name,))
    place.world.work(model_id)
    settings = place.world.settings
    end_schedulers_lease(place.world)
    place.die(point, lambda: open_scheduler(settings).tick())
    place.recover(model_id)
    purged = [version.status for version in place.world.versions(model_id)][:-1]
    found = [Broken("left_behind", "a retired version was not purged")] * sum(each != "purged" for each in purged)
    return found + not_forgotten(place, [request]) + place.wrong()


def of_the_webhook_sender(place: Place, point: str, _: Random) -> list[Broken]:
    """Kill the webhook sender around sending; the news arrives at least once, under one id."""
    with receiver() as (url, seen):
        with place.world.database.write() as session:
            endpoint, _secret = add_endpoint(
                session, session_key(place.world.settings), "default", url, list(WebhookEvent)
            )
            announce(session, "default", WebhookEvent.VERSION_PUBLISHED, {"model": "drill", "version": 1})
            endpoint_id = endpoint.id
        url_of_database = place.world.settings.database_url
        place.die(point, lambda: webhook_sender(place, Database(url_of_database)).round())
        with place.world.database.write() as session:
            mine = WebhookDelivery.endpoint_id == endpoint_id
            session.execute(update(WebhookDelivery).where(mine).values(next_at=1))
        webhook_sender(place, place.world.database).round()
        with place.world.database.write() as session:
            row = session.query(WebhookDelivery).filter(mine).one()
            endpoint = session.merge(endpoint)
            endpoint.disabled_at = row.created_at  # the next death gets a new endpoint
            delivered, row_id = row.delivered_at, row.id
    found = [] if delivered is not None and seen else [Broken("lost", f"{point}: the news never arrived")]
    return found + [Broken("doubled", "the same news came under two ids")] * (set(seen) > {row_id})


def of_the_end_of_a_model(place: Place, point: str, _: Random) -> list[Broken]:
    """Kill the API while a model is retired, cancelled or given another policy; or the scheduler that cleans up."""
    verb, name = point.partition("-")[0], next(place.names)
    live = verb in ("retire", "policy")
    model_id = place.world.live(name=name) if live else place.world.register(name=name)
    request = place.world.delete("p3", models=(name,))
    path, headers = f"/v1/models/{name}", {"Authorization": place.api.headers["Authorization"]}

    def call(client: TestClient) -> None:
        if verb == "policy":  # a change of the policy that changes nothing else
            client.patch(f"{path}/policy", json={"max_accuracy_drop": 0.2}, headers=headers)
        else:
            client.post(f"{path}/retire", headers=headers)

    def act() -> None:
        if verb == "erase":
            open_scheduler(place.world.settings).tick()
            return
        with TestClient(create_app(place.world.settings)) as client:
            call(client)

    if verb == "erase":
        call(place.api)
        end_schedulers_lease(place.world)
    place.die(point, act)
    call(place.api)
    place.recover(model_id)
    status, task = place.world.model(model_id).status, place.world.task(request)
    wanted = {"retire": ("retired", 0), "policy": ("live", SAMPLES_EACH)}.get(verb, ("cancelled", 0))
    ended = task.status == "completed" and (status, task.samples) == wanted
    return [Broken("lost", f"{status}, {task.status}, {task.reason}")] * (not ended) + place.wrong()


def webhook_sender(place: Place, database: Database) -> WebhookSender:
    return WebhookSender(database, session_key(place.world.settings), Outbound(loopback=True), 0.05)


def leaving(place: Place, dice: Random, count: int) -> list[str]:
    """Draw ``count`` people of the present model."""
    return [place.people.pop(dice.randrange(len(place.people))) for _ in range(count)]


def require_live(place: Place, model_id: str) -> list[Broken]:
    model = place.world.model(model_id)
    return [] if model.status == "live" else [Broken("lost", f"the model is {model.status}: {model.reason}")]


def not_forgotten(place: Place, requests: list[str]) -> list[Broken]:
    """Return the requests that did not end with exactly their person's samples forgotten."""
    tasks = [place.world.task(request) for request in requests]
    bad = [task for task in tasks if (task.status, task.samples) != ("completed", SAMPLES_EACH)]
    return [Broken("lost", f"a request ended as {task.status}, {task.samples} samples, {task.reason}") for task in bad]


@contextmanager
def receiver() -> Iterator[tuple[str, list[str]]]:
    """Run a server on this machine that keeps the ids of what it is sent."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            seen.append(str(self.headers["webhook-id"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", seen
    finally:
        server.shutdown()
        server.server_close()


UPDATE = (
    *("worker-after-claim", "worker-after-load", "worker-after-digest", "worker-after-compute", "worker-after-noise"),
    *("store-half-file", "store-written", "store-synced", "store-renamed", "store-folder-synced", "store-linked"),
    "store-deleted",
    *("worker-before-publish", "publish-after-charge", "publish-after-version", "publish-after-audit"),
    *("publish-inside-commit", "worker-after-commit", "version-noted", "keys-erased", "worker-after-erasure"),
    "worker-before-ack",
)
WITH_ROWS = (
    "part-kept",
    "worker-before-publish",
    "publish-after-audit",
    "publish-inside-commit",
    "worker-after-commit",
)
API = ("api-before-transaction", "api-after-request", "api-after-audit", "api-inside-commit", "api-after-commit")
PREPARATION = ("prepare-after-manifest", "prepare-after-train", "keys-before-rows", "prepare-after-rows")
WORK_UNITS = ("prepare-after-work-units", "work-unit-inside", "work-unit-after")
ENDS = (
    *("retire-after-audit", "retire-inside-commit", "cancel-after-audit"),
    *("policy-after-audit", "policy-inside-commit", "erase-after-state"),
)
OF_A_BUCKET = ("bucket-before-put", "bucket-put", "bucket-created", "bucket-copied", "bucket-overwritten")
"""died at in tests/workers/scheduler/test_bucket_deaths.py, by processes: no thread of obstore survives a fork"""
DEATHS: list[tuple[str, Death]] = [
    *((point, of_the_api) for point in API),
    *((point, of_an_update) for point in UPDATE),
    *((point, of_an_update_with_rows) for point in WITH_ROWS),
    *((point, of_a_preparation) for point in PREPARATION),
    *((point, of_work_units) for point in WORK_UNITS),
    *((point, of_a_retrain) for point in ("switch-after-version", "switch-after-tasks")),
    *((point, of_a_calibration) for point in ("calibration-inside-order", "calibration-after-order")),
    *((point, of_the_scheduler) for point in ("scheduler-during-purge", "log-before-head", "log-after-head")),
    *((f"log-{point}", of_the_scheduler) for point in ("before-witness", "before-signature", "after-signature")),
    *((point, of_the_end_of_a_model) for point in ENDS),
    *((point, of_the_webhook_sender) for point in ("webhook-before-send", "webhook-after-send")),
]
"""every point of the source, each with what dies there; a test compares with the source"""
