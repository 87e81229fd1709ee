"""Six hosts without a shared disk: a bucket, PostgreSQL and Redis join two APIs, three workers and a scheduler."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from expunge_client.cli.client import Client
from expunge_client.cli.output import CommandError
from expunge_service.audit.signed_note import Verifier
from expunge_service.certificates.envelope import verify
from expunge_service.certificates.statement import REPLACED
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from expunge_service.infra.stores import Store
from expunge_workers.storage.key_store import KeyStore
from tests.faults.invariants import broken, left_behind, uncertified, unfinished, unreadable
from tests.harness.hosts import ROLES, Hosts, hosts
from tests.harness.residue import CANARY, found, head_weights, personal, secret_of, windows
from tests.harness.s3 import BUCKET, S3
from tests.harness.servers import Postgres, Redis
from tests.stories.conftest import SETTINGS, recipes_in

DEATHS_APART_SECONDS, DEATHS = (0.2, 2.5), 40


@pytest.fixture(scope="module")
def town(
    postgres_server: Postgres, redis_server: Redis, s3_server: S3, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hosts]:
    recipes = recipes_in(tmp_path_factory.mktemp("recipes"))
    servers = (postgres_server, redis_server, s3_server)
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    with hosts(tmp_path_factory.mktemp("hosts"), recipes, servers, place, **SETTINGS) as running:
        yield running


@pytest.mark.drill  # on one host: test_residue.py
def test_a_person_is_forgotten_across_hosts_and_nothing_of_them_is_left(town: Hosts) -> None:
    name = town.live("canary", guarantee="proved")
    secret = secret_of(town, name, CANARY)
    assert secret is not None
    weights = windows(head_weights(town, name))
    assert found(town, [secret.share]) and found(town, weights), "the search does not even find what is there"

    request = town.second.post("/v1/deletion-requests", {"subject_id": CANARY}, str(uuid.uuid4()))
    town.kill("worker-2")
    assert town.ended(request)["status"] == "completed", town.logs()
    town.mend()
    assert fetched(town.client, town.account.api_key, name) == 200
    assert fetched(town.second, town.account.api_key, name, "1") == 410
    needles = [*personal(secret.vector), secret.key]
    town.eventually(lambda: found(town, [secret.share, *weights]), lambda places: not places)
    assert found(town, needles) == [] and secret_of(town, name, CANARY) is None
    assert sound(town) == []
    certified(town, request["id"])


@pytest.mark.drill
def test_no_host_keeps_anything_but_secrets_and_logs(town: Hosts) -> None:
    kept = {path.relative_to(town.base / name).parts[0] for name in ROLES for path in (town.base / name).rglob("*")}
    assert kept == {"secrets", "tmp", "logs"}


@pytest.mark.drill
@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_host_with_a_place_of_its_own_does_not_start_and_says_why(
    town: Hosts, postgres_server: Postgres, tmp_path: Path, role: str
) -> None:
    """A folder, another bucket, another key store, another database."""
    with postgres_server.database() as keys, postgres_server.database() as database:
        migrate(Database(database))
        wrong = {
            "EXPUNGE_KEY_FOLDER": (str(tmp_path), "EXPUNGE_KEY_FOLDER", "carries no mark"),
            "EXPUNGE_STORE": ("s3://of-another-host/store", "EXPUNGE_STORE", "carries no mark"),
            "EXPUNGE_KEY_STORE_URL": (keys, "EXPUNGE_KEY_STORE_URL", "carries no mark"),
            "EXPUNGE_DATABASE_URL": (database, "EXPUNGE_STORE", "EXPUNGE_DATABASE_URL"),
        }
        for setting, (value, named, said) in wrong.items():
            environment = {**town.processes["scheduler"].environment, setting: value}
            command = [sys.executable, "-m", "expunge_workers.main", role]
            refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert refused.returncode == 1 and "Traceback" not in refused.stderr, refused.stderr
            assert named in refused.stderr and said in refused.stderr, refused.stderr


@pytest.mark.drill
def test_any_host_dies_at_any_time_and_everything_ends(town: Hosts) -> None:
    dice = random.Random(56)
    names = [town.live("shared_out"), town.live("digits", guarantee="proved")]
    requests: list[dict[str, Any]] = []
    for death in range(DEATHS):
        requests += [
            asked(town, dice, names[:2], person) for person in (f"tiny-person-{death}", f"person-{death + 1:03d}")
        ]
        if death == DEATHS // 2:
            names.append(town.register("shared_out"))
        time.sleep(dice.uniform(*DEATHS_APART_SECONDS))
        town.kill(dice.choice(list(ROLES)))
        time.sleep(dice.uniform(0, 1))
        town.mend()
    assert all(town.prepared(name)["status"] == "live" for name in names), town.logs()
    ends = [town.ended(request)["status"] for request in requests]
    print(f"{DEATHS} deaths, {len(requests)} requests: {sorted(set(ends))}")
    assert set(ends) == {"completed"}
    assert sound(town) == []
    for request in requests:
        certified(town, request["id"])


def asked(town: Hosts, dice: random.Random, models: list[str], person: str) -> dict[str, Any]:
    """Ask either API, and repeat the call at either one with the same key until it answers, as a client does."""
    key = str(uuid.uuid4())
    body = {"subject_id": person, "models": models, "suppress": "named_models"}
    deadline = time.monotonic() + 60
    while True:
        try:
            answer: dict[str, Any] = dice.choice([town.client, town.second]).post("/v1/deletion-requests", body, key)
            return answer
        except CommandError:
            assert time.monotonic() < deadline, town.logs()
            town.mend()
            time.sleep(0.2)


def sound(town: Hosts) -> list[Any]:
    """Return what does not hold once everything had its time."""
    settings, database = town.settings, town.database()
    keys = KeyStore.of(settings)
    try:
        town.eventually(lambda: [*unfinished(database), *uncertified(database)], lambda open_: not open_)
        store, private = Store.at(settings.store), Store.at(settings.private_store)
        return broken(database) + unreadable(database, store, private) + left_behind(database, keys)
    finally:
        database.close()
        keys.close()


def certified(town: Hosts, request_id: str) -> None:
    """Fetch the certificate at the second API and check it with the public key alone."""
    path = f"/v1/deletion-requests/{request_id}/certificate"

    def fetch() -> Any:
        try:
            return town.second.get(path)
        except CommandError:
            return None

    envelope = town.eventually(fetch, bool)
    statement = verify(envelope, Verifier.load(town.settings.home / "log.vkey"))
    destroyed = [part["keys_destroyed_with_release"] for part in statement["predicate"]["models"]]
    assert all(each["how"] == REPLACED for each in destroyed if each["count"]), "the keys are in a bucket"


def fetched(client: Client, key: str, name: str, number: str = "current") -> int:
    """Download a checkpoint; return the answer's code."""
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{client.url}/v1/models/{name}/versions/{number}/checkpoint", headers=headers).status_code
