"""A fallback that is not a retrain: it makes the updates that the method cannot, and the method's place is its own
where the method does not help. Which of the two ran is sealed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from service.infra.tables import AuditEntry, PhaseSeconds, Recollection, Version
from tests.workers.test_crashes import die_at
from tests.workers.test_sketch import SKETCH, database_text
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee
from workers.storage import checkpoint_format as codec
from workers.storage import private_state as state

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""what does not differ between the databases"""
SPENT = {**SKETCH, "updates": 1}
"""a sketch whose second update is one too many"""
STANDING: dict[str, tuple[str, dict[str, Any]]] = {
    "newton": ("steps", {"damping": 0.1, "threshold": 10.0}),
    "rewind": ("steps", {"fraction": 0.5}),
    "mini": ("steps", {"threshold": 10.0}),
}


def evidence(world: World, version: Version) -> dict[str, Any]:
    """What was sealed with the version's state."""
    _, metadata = codec.decode(world.storage.sealer.unseal(world.storage.private.read(version.state)))
    found: dict[str, Any] = json.loads(metadata["evidence"])
    return found


def lose_vectors(world: World) -> None:
    with world.database.write() as session:
        session.query(Recollection).delete()


@pytest.mark.parametrize("fallback", STANDING)
def test_a_release_beyond_the_tolerance_is_made_by_the_fallback(world: World, fallback: str) -> None:
    """Out of tolerance: at once, in the same claim, and not as a held request; the next one too."""
    recipe, options = STANDING[fallback]
    model_id = world.live(recipe, fallback=fallback, options=SPENT, fallback_options=options)
    assert world.report(model_id)["fallback"]["method"] == fallback
    for number, person in enumerate(("p3", "p4", "p5"), start=2):
        request = world.delete(person)
        world.work(model_id)
        assert (world.request(request).status, world.head(model_id).number) == ("completed", number)
        told = evidence(world, world.head(model_id)).get("fallback")
        assert told == (None if number == 2 else {"method": fallback, "why": "method_refused"})
    assert world.count(Recollection) == 9


@SQLITE
def test_which_method_ran_is_sealed_and_what_it_keeps_is_listed(world: World, tmp_path: Path) -> None:
    model_id = world.live("steps", fallback="rewind", options=SPENT)
    for person in ("p3", "p4"):
        world.delete(person)
        world.work(model_id)
    assert evidence(world, world.head(model_id))["fallback"]["method"] == "rewind"
    assert [version.method for version in world.versions(model_id)] == ["recollection"] * 3
    claim = Claim.from_json(world.head(model_id).claim)
    assert claim.method == "recollection"
    assert any("checkpoint that every update starts from" in sentence for sentence in claim.secret_state)
    assert {row.method for row in world.rows_of(PhaseSeconds)} == {"recollection"}
    after = [entry.body for entry in world.rows_of(AuditEntry) if entry.kind != "model.registered"]
    assert not any("rewind" in body for body in after)
    assert "method_refused" not in database_text(world)


@SQLITE
def test_a_proved_generation_stays_proved_through_its_fallback_and_charges_the_same(world: World) -> None:
    """The bound is computed at the weights, whoever made them; the method goes on from there."""
    model_id = world.live("convex", min_guarantee="proved", fallback="newton")
    budget_cost = world.generation(model_id).budget_cost
    world.delete("p3")
    world.work(model_id)
    kept = world.rows_of(Recollection)
    lose_vectors(world)
    world.delete("p4")
    world.work(model_id)
    assert evidence(world, world.head(model_id))["fallback"] == {"method": "newton", "why": "vectors_missing"}
    with world.database.write() as session:
        session.add_all(
            Recollection(
                generation_id=row.generation_id,
                holder=row.holder,
                key_id=row.key_id,
                nonce=row.nonce,
                sealed=row.sealed,
            )
            for row in kept
        )
    request = world.delete("p5")
    world.work(model_id)
    assert "fallback" not in evidence(world, world.head(model_id))
    assert (world.request(request).status, world.generation(model_id).spent) == ("completed", 3 * budget_cost)
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.PROVED
    assert evidence(world, world.head(model_id))["bound"] <= world.generation(model_id).max_distance


@SQLITE
def test_part_of_a_person_goes_by_the_fallback_and_the_rest_too(world: World) -> None:
    model_id = world.live("convex", fallback="newton")
    part = world.delete(samples=["s9"])
    world.work(model_id)
    assert (world.request(part).status, world.task(part).samples, world.count(Recollection)) == ("completed", 1, 11)
    rest = world.delete("p3")
    world.work(model_id)
    assert (world.request(rest).status, world.task(rest).samples) == ("completed", 2)
    whys = [evidence(world, version)["fallback"]["why"] for version in world.versions(model_id)[2:]]
    assert whys == ["vectors_missing"]


@SQLITE
def test_where_the_fallback_cannot_either_the_request_is_held(world: World) -> None:
    model_id = world.live("classes", fallback="newton")
    requests = [world.delete(person) for person in ("p0", "p1", "p2")]
    world.work(model_id)
    assert {(world.request(each).status, world.request(each).reason) for each in requests} == {
        ("blocked", "method_refused")
    }
    assert (world.head(model_id).number, world.count(Recollection)) == (1, 12)


@SQLITE
@pytest.mark.parametrize(("fallback", "guarantee"), [("retrain", "exact"), ("rewind", "none")])
def test_a_method_that_does_not_help_is_replaced_by_its_fallback_at_registration(
    world: World, fallback: str, guarantee: str
) -> None:
    model_id = world.live(
        "unstable", fallback=fallback, fallback_options={"fraction": 1.0} if guarantee == "none" else {}
    )
    generation = world.generation(model_id)
    switched = (generation.report or {})["switched"]
    assert (switched["from"], switched["to"], generation.method, generation.guarantee) == (
        "recollection",
        fallback,
        fallback,
        guarantee,
    )
    assert "times as far from retraining" in switched["why"]
    assert "preparation.switched" in world.kinds()
    request = world.delete("person-3")
    world.work(model_id)
    task = world.task(request)
    assert (task.status, task.method, world.head(model_id).number) == ("completed", fallback, 2)
    assert world.count(Recollection) == 0


@SQLITE
def test_a_worker_that_dies_after_the_switch_prepares_the_fallback(world: World) -> None:
    model_id = world.register("unstable", fallback="retrain")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, "publish-inside-commit", lambda other: other.work(model_id))
    world.expire_lease(model_id)
    world.work(model_id)
    assert (world.model(model_id).status, world.generation(model_id).method) == ("live", "retrain")
    assert world.kinds().count("preparation.switched") == 1


REFUSED: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "safe stands in for nobody": ("steps", "recollection", {"fallback": "safe"}, ("mini, newton, rewind", "retrain")),
    "recollection neither": ("steps", "newton", {"fallback": "recollection"}, ("cannot make an update",)),
    "safe cannot go on": ("steps", "safe", {"fallback": "newton"}, ("cannot go on", "retrain")),
    "an option it lacks": (
        "steps",
        "recollection",
        {"fallback": "newton", "fallback_options": {"rank": 3}},
        ("newton has no option 'rank'",),
    ),
    "a fallback that would not work": (
        "convex",
        "recollection",
        {"fallback": "rewind"},
        ("fallback rewind cannot serve", "convergence"),
    ),
    "a bound for one method": (
        "ridge",
        "newton",
        {
            "guarantee": "estimated",
            "options": {"radius": 5.0},
            "noise_std": 10.0,
            "max_distance": 1.0,
            "fallback": "rewind",
        },
        ("does not cover updates by the fallback rewind",),
    ),
    "a measurement of one method": (
        "convex",
        "newton",
        {"guarantee": "calibrated", "fallback": "mini"},
        ("does not cover updates by the fallback mini",),
    ),
}


@SQLITE
@pytest.mark.parametrize("name", REFUSED)
def test_a_fallback_that_cannot_stand_by_is_refused_in_words(world: World, name: str) -> None:
    recipe, method, policy, words = REFUSED[name]
    model_id = world.register(recipe, method, **policy)
    world.work(model_id)
    assert world.model(model_id).status == "refused"
    for word in words:
        assert word in (world.model(model_id).reason or "")


@SQLITE
def test_no_weights_of_anybody_are_left_in_clear(world: World, tmp_path: Path) -> None:
    model_id = world.live("steps", fallback="rewind", options=SPENT)
    kept = state.load(world.storage.private, world.storage.sealer, world.head(model_id).state, torch.device("cpu"))
    checkpoint = kept.tensors["standby.checkpoint"].numpy().tobytes()
    assert not any(checkpoint in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
