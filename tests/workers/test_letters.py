"""Letters about what real workers did, asked and read over HTTP: they say what the log says, and no more."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expunge_service.infra.tables import Generation
from expunge_service.requests import HOLDOUT_NAMED
from expunge_workers.scheduler.run import open_scheduler
from tests.workers.test_resolved import api_of
from tests.workers.worlds import World, end_schedulers_lease

PATH = "/v1/deletion-requests"


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with api_of(world) as api:
        key = api.headers["Authorization"].removeprefix("Bearer ")
        assert api.post("/console/login", data={"key": key}, follow_redirects=False).status_code == 303
        yield api


def ask(client: TestClient, key: str, **order: Any) -> str:
    answer = client.post(PATH, json={"regulation": "gdpr", **order}, headers={"Idempotency-Key": key})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def letter(world: World, client: TestClient, request: str) -> str:
    """The text of the request's letter, after the scheduler has signed what there is to sign."""
    for _ in range(2):
        end_schedulers_lease(world)
        assert open_scheduler(world.settings).tick()
    page = client.get(f"/console/requests/{request}/letter")
    assert page.status_code == 200, page.text
    (body,) = re.findall(r"<article.*?</article>", page.text, re.DOTALL)
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", body)).split())


def test_the_second_letter_names_the_first_version_without_the_person(world: World, client: TestClient) -> None:
    """A2b: it named the version that was current, and said that it had removed nothing from it."""
    model = world.live(guarantee="proved")
    for place, person in enumerate(("p0", "p1", "p2")):
        ask(client, str(place), subject_id=person)
        world.work(model)
    again = ask(client, "again", subject_id="p0")
    world.work(model)
    said = letter(world, client, again)
    assert world.head(model).number == 4
    assert "We had already acted on your data, for an earlier request." in said
    assert 'we had removed your data from the model "m" (version 2 of ' in said
    assert "That version was the first without." in said
    assert "We removed" not in said and "version 4" not in said and "0 records" not in said
    assert "times in 100 with the versions of the certificate" in said, "the proved number is said"


def test_three_samples_of_which_one_is_known_are_each_accounted_for(world: World, client: TestClient) -> None:
    model = world.live(method="retrain", granularity="sample")
    request = ask(client, "k", sample_ids=["s0", "unknown-1", "unknown-2"])
    world.work(model)
    said = letter(world, client, request)
    assert "some of the records that you named" in said
    assert "Of the 3 records that you gave us, 1 was found in these models now and 2 were found in no model" in said
    later = ask(client, "later", sample_ids=["s0", "s1", "unknown-1"])
    world.work(model)
    said = letter(world, client, later)
    assert 'data that you named from the model "m" (version 2 of ' in said or 'the model "m" (version 2 of ' in said
    assert "1 was found in these models now, 1 was dealt with for an earlier request and 1 was found in no" in said


def test_a_record_of_two_models_is_counted_once(world: World, client: TestClient) -> None:
    models = [world.live(name=name, guarantee="proved") for name in ("a", "b")]
    request = ask(client, "k", subject_id="p0")
    for model in models:
        world.work(model)
    said = letter(world, client, request)
    assert 'We removed 3 records about you from the models "a" and "b".' in said
    assert 'Version 2 of "a" and version 2 of "b" are the first without them.' in said


def test_what_is_counted_once_stays_so_after_the_model_was_trained_again(world: World, client: TestClient) -> None:
    """The generation's people are gone then; the certificate has the number."""
    models = [world.live(name=name, guarantee="proved") for name in ("a", "b")]
    request = ask(client, "k", subject_ids=["p0", "p99"])
    for model in models:
        world.work(model)
    before = letter(world, client, request)
    assert "Of the 2 identifiers that you gave us, 1 was found in these models now and 1 was found in no" in before
    assert client.post("/v1/models/a/retrains", json={}, headers={"Idempotency-Key": "r"}).is_success
    world.work(models[0])
    assert world.head(models[0]).number == 3
    assert letter(world, client, request) == before


def test_without_a_guarantee_no_letter_says_deleted(world: World, client: TestClient) -> None:
    """A2: the headline and the first paragraph follow the weakest model."""
    proved, weak = world.live(name="a", guarantee="proved"), world.live(name="b", method="newton", guarantee="none")
    request = ask(client, "k", subject_id="p0")
    for model in (proved, weak):
        world.work(model)
    claims = {part["version"] for part in client.get(f"{PATH}/{request}").json()["models"]}
    assert claims == {2}
    said = letter(world, client, request)
    assert "We changed our trained models to remove your data." in said
    assert "We have deleted" not in said and "We removed" not in said
    assert 'how much of your data is left in the model "b", and we make no promise about it' in said
    assert "times in 100" in said, "the proved number of the other model is said"


def test_every_declaration_of_the_certificate_is_in_the_letter(world: World, client: TestClient) -> None:
    """A3: it named one, and no other."""
    model = world.live(guarantee="proved")
    request = ask(client, "k", subject_id="p0")
    world.work(model)
    said = letter(world, client, request)
    declared = world.head(model).claim["declared"]
    assert len(declared) == 2
    assert "We vouch for the program itself." in said
    assert "Our word, not checked: No column of the tables mixes several people." in said
    page = html.unescape(client.get(f"/console/requests/{request}/certificate").text)
    assert "No column of the tables mixes several people." in page


def test_of_a_holdout_without_names_the_letter_says_that_nothing_is_known(world: World, client: TestClient) -> None:
    """A4: a person in the test rows was told that no identifier was found, and no more."""
    world.live("held_out", name="named")
    generation = world.generation(world.live("convex", name="unnamed"))  # as if by a release before rows
    world.change(Generation, generation.id, manifest=(generation.manifest or {}) | {HOLDOUT_NAMED: False})
    said = letter(world, client, ask(client, "k", subject_id="p99"))
    assert "We did not find your identifier in our trained models." in said
    assert 'Whose records measure the model "unnamed" is not known to us; yours may be.' in said
    assert 'measure the model "named"' not in said
