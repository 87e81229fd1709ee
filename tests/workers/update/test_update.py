"""Updates against a real database: what a deletion does, once, and what makes it wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sqlalchemy import select

from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    DeletionRequest,
    Erasure,
    Generation,
    Model,
    PhaseSeconds,
    Removal,
    StoredVector,
    Task,
    Version,
)
from expunge_service.infra.time import BUCKETS
from expunge_service.queue import Deletions, Stale
from expunge_service.requests.cancellation import cancel
from expunge_workers.storage import checkpoint_format, private_state
from tests.faults.invariants import broken
from tests.harness.files import names_in, path_in, root_of
from tests.workers import meanwhile
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee


@pytest.mark.both_engines
def test_a_deletion_makes_one_new_version_without_the_person(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    world.work(model_id)
    first, second = world.versions(model_id)
    assert (second.number, second.parent_id, second.samples, second.people) == (2, first.id, 3, 1)
    assert (first.status, second.status, world.model(model_id).current_id) == ("retired", "current", second.id)
    task = world.task(request)
    assert (task.status, task.samples, task.version_id, task.method) == ("completed", 3, second.id, "recollection")
    assert world.request(request).status == "completed"
    assert world.count(Removal) == 3
    assert world.lease(model_id).token == 0


def test_the_published_file_holds_finite_weights_of_the_models_shape_and_the_digest_it_is_named_by(
    world: World,
) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    head = world.head(model_id)
    path = path_in(world.storage.store, head.checkpoint)
    tensors = load_file(path)
    assert {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} == {"weight": ((2, 4), torch.float32)}
    assert bool(torch.isfinite(tensors["weight"]).all())
    assert (path.stat().st_size, len(world.storage.store.read(head.checkpoint))) == (head.size, head.size)


def test_a_proved_release_charges_its_cap_and_claims_no_more(world: World) -> None:
    model_id = world.live(guarantee="proved")
    world.delete("p3")
    world.work(model_id)
    generation, claim = world.generation(model_id), Claim.from_json(world.head(model_id).claim)
    assert (claim.guarantee, claim.updates, claim.spent, claim.limit) == (
        Guarantee.PROVED,
        1,
        generation.budget_cost,
        generation.budget,
    )
    assert generation.spent == generation.budget_cost == sum(entry.budget_cost for entry in world.rows_of(BudgetEntry))
    assert Claim.from_json(world.versions(model_id)[0].claim).epsilon == 0


def test_a_proved_release_lies_within_its_cap_of_the_retained_minimiser(world: World) -> None:
    """Checked from outside: the secret weights against a minimiser that plain gradient descent finds."""
    model_id = world.live(guarantee="proved", max_distance=1e-6)
    world.delete("p3")
    world.work(model_id)
    secret = world.state(world.head(model_id)).weights
    _, people, inputs, targets = meanwhile.people()
    retained = torch.tensor([person != "p3" for person in people])
    inputs, targets = inputs[retained], targets[retained]
    w = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, history_size=20)

    def objective() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(inputs.double() @ w.T, targets) + 0.05 * w.square().sum()
        loss.backward()
        return loss

    optimiser.step(objective)
    assert float((secret - w.detach().reshape(-1)).norm()) <= 1e-6


def test_everything_that_waits_goes_into_one_release(world: World) -> None:
    model_id = world.live()
    requests = [world.delete(f"p{index}") for index in range(6)] + [world.delete("p2")]
    world.work(model_id)
    head = world.head(model_id)
    assert (head.number, head.samples, head.people) == (2, 18, 6)
    assert {world.task(request).version_id for request in requests} == {head.id}
    assert world.count(Removal) == 18
    assert len([entry for entry in world.rows_of(BudgetEntry) if entry.budget_cost]) == 1


def test_nothing_to_forget_makes_no_version_and_costs_nothing(world: World) -> None:
    model_id = world.live()
    first = world.delete("p1")
    world.work(model_id)
    before = world.footprint()
    again, unknown = world.delete("p1"), world.delete("nobody")
    world.work(model_id)
    after = world.footprint()
    assert (world.task(again).samples, world.task(again).reason) == (0, "already_deleted")
    assert world.task(again).version_id == world.task(first).version_id
    assert (world.request(unknown).status, world.request(unknown).reason) == ("completed", "no_match")
    assert {name: after[name] - before[name] for name in before if name != "AuditEntry"} == {
        "Version": 0,
        "Removal": 0,
        "BudgetEntry": 0,
        "StoredVector": 0,
    }


def test_a_sample_of_several_people_goes_with_any_of_them(world: World) -> None:
    model_id = world.live("together")
    world.delete("both")
    world.work(model_id)
    assert world.head(model_id).samples == 12
    world.delete("p0")
    world.work(model_id)
    assert world.head(model_id).samples == 2


@pytest.mark.both_engines
def test_a_worker_whose_lease_was_taken_over_writes_nothing(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    late = world.claim(model_id, owner="late")
    assert isinstance(late, Deletions)
    world.expire_lease(model_id)
    winner = world.claim(model_id, owner="winner")
    assert isinstance(winner, Deletions) and winner.lease.token != late.lease.token
    before = world.footprint()
    with pytest.raises(Stale):
        world.update(late)
    assert world.footprint() == before
    world.update(winner)
    with pytest.raises(Stale):
        world.update(late)
    assert (world.head(model_id).number, world.count(Removal), world.request(request).status) == (
        2,
        3,
        "completed",
    )


@pytest.mark.both_engines
def test_a_publication_whose_commit_was_never_learned_is_not_made_twice(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    job = world.claim(model_id)
    assert isinstance(job, Deletions)
    world.update(job)
    before = world.footprint()
    with pytest.raises(Stale):
        world.update(job)
    assert world.footprint() == before


def test_a_cancelled_request_is_never_carried_out(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    world.change(Task, world.task(request).id, not_before=2**62)
    with world.database.write() as session:
        cancel(session, session.get_one(DeletionRequest, request))
    world.change(Task, world.task(request).id, not_before=0)
    world.work(model_id)
    assert (world.head(model_id).number, world.count(Removal), world.request(request).status) == (
        1,
        0,
        "cancelled",
    )
    second = world.live(name="second")
    assert world.generation(second).manifest["samples"] == 36  # type: ignore[index]
    assert broken(world.database) == []


def test_a_live_lease_is_not_claimed(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    assert world.claim(model_id) is not None
    assert world.claim(model_id, owner="second") is None


@pytest.mark.both_engines
def test_the_budget_is_never_overspent_and_what_does_not_fit_is_held(world: World) -> None:
    model_id = world.live(epsilon=1.0, noise_std=0.01, max_distance=0.0018, fallback="hold")
    generation = world.generation(model_id)
    assert generation.budget is not None
    fits = generation.budget // generation.budget_cost
    assert fits in (1, 2, 3)
    requests = []
    for index in range(fits + 1):
        requests.append(world.delete(f"p{index}"))
        world.work(model_id)
    spent = world.generation(model_id).spent
    assert spent == fits * generation.budget_cost == sum(entry.budget_cost for entry in world.rows_of(BudgetEntry))
    assert spent <= generation.budget < spent + generation.budget_cost
    held = world.request(requests[-1])
    assert (held.status, held.reason) == ("blocked", "budget_exhausted")
    unknown = world.delete("p0")
    world.work(model_id)
    assert world.request(unknown).status == "completed"


def test_a_guarantee_that_claims_nothing_has_no_budget(world: World) -> None:
    model_id = world.live("steps")
    world.delete("p3")
    world.work(model_id)
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.guarantee, claim.epsilon, world.generation(model_id).budget) == (Guarantee.NONE, None, None)


@pytest.mark.parametrize("method", ["retrain", "newton"])
def test_methods_that_read_the_retained_samples_release_too(world: World, method: str) -> None:
    model_id = world.live(method=method)
    world.delete("p3")
    world.work(model_id)
    assert Claim.from_json(world.head(model_id).claim).guarantee is (
        Guarantee.EXACT if method == "retrain" else Guarantee.PROVED
    )


def test_a_release_needs_no_sample_of_the_forgotten(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.drop_rows("s9", "s10", "s11")
    world.work(model_id)
    assert world.head(model_id).number == 2


def test_missing_or_changed_retained_samples_hold_the_release_with_counts(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    world.drop_rows("s0", "s1", "s6", "s7")
    world.scale_rows(2.0, "s5")
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "samples_changed")
    entry = json.loads(entries(world, "update.blocked")[0].body)
    assert (entry["missing"], entry["changed"]) == (4, 1)
    assert world.head(model_id).number == 1


def test_one_retained_sample_that_changed_holds_a_method_that_goes_on(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    world.scale_rows(2.0, "s5")
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "needs_retrain")
    assert (world.task(request).facts or {})["needs_retrain"]["cause"] == "method_refused"
    assert world.head(model_id).number == 1


def test_a_changed_recipe_holds_the_release(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    recipe = world.settings.recipes / "convex.py"
    recipe.write_text(recipe.read_text() + "\nEDITED = 1\n")
    world.work(model_id)
    assert world.request(request).reason == "recipe_changed"


@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_a_damaged_state_fails_closed(world: World, damage: str) -> None:
    model_id = world.live()
    request = world.delete("p3")
    path = path_in(world.storage.private, world.head(model_id).state)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1])) if damage == "changed" else path.unlink()
    with pytest.raises(Damaged):
        world.state(world.head(model_id))
    world.work(model_id)
    assert (world.request(request).reason, world.head(model_id).number) == ("state_unreadable", 1)


def test_a_state_of_a_format_that_this_worker_does_not_know_fails_closed(world: World) -> None:
    model_id = world.live()
    storage = world.storage
    theirs = checkpoint_format.encode({"weights": torch.zeros(8)}, {"format": "next"})
    foreign = storage.private.put([storage.sealer.seal(private_state.place_of(world.head(model_id)), theirs)])
    world.change(Version, world.head(model_id).id, state=foreign.digest)
    world.commit_anew(model_id)
    request = world.delete("p3")
    world.work(model_id)
    assert (world.request(request).reason, world.head(model_id).number) == ("state_unreadable", 1)


@pytest.mark.parametrize("change", [{"torch": "1.0.0"}, {"device": "tpu"}])
def test_a_trajectory_is_not_replayed_under_another_torch_or_device(world: World, change: dict[str, str]) -> None:
    model_id = world.live("steps", method="mini")
    generation = world.generation(model_id)
    frozen = dict(generation.manifest or {})
    world.change(Generation, generation.id, manifest=frozen | {"libraries": frozen["libraries"] | change})
    world.commit_anew(model_id)
    request = world.delete("p3")
    world.work(model_id)
    assert world.request(request).reason == "environment_changed"
    world.change(Generation, generation.id, manifest=frozen)
    world.commit_anew(model_id)
    again = world.delete("p4")
    world.work(model_id)
    assert world.request(again).status == "completed"


def test_a_bound_above_the_cap_holds_and_costs_nothing(world: World) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    world.change(Generation, world.model(model_id).generation_id, max_distance=1e-17)
    world.commit_anew(model_id)
    world.work(model_id)
    assert (world.request(request).reason, world.generation(model_id).spent) == ("needs_retrain", 0)


def test_a_draw_that_the_utility_gate_refused_is_charged_and_held(world: World) -> None:
    model_id = world.live(noise_std=1.0)
    world.change(Model, model_id, policy=world.model(model_id).policy | {"max_accuracy_drop": 0.0})
    world.change(Version, world.head(model_id).id, holdout_accuracy=2.0)
    request = world.delete("p3")
    world.work(model_id)
    generation = world.generation(model_id)
    assert (world.request(request).reason, world.head(model_id).number) == ("accuracy_drop", 1)
    assert generation.spent == generation.budget_cost > 0
    assert [entry.version_id for entry in world.rows_of(BudgetEntry)] == [None]
    assert world.count(Removal) == 0


def test_part_of_a_person_is_held_where_people_are_forgotten_whole(world: World) -> None:
    model_id = world.live()
    part, whole = world.delete(samples=["s0"]), world.delete("p5")
    world.work(model_id)
    assert (world.request(part).status, world.request(part).reason) == ("blocked", "partial_subject")
    assert world.request(whole).status == "completed"


def test_all_samples_of_a_person_may_be_named_one_by_one(world: World) -> None:
    model_id = world.live()
    requests = [world.delete(samples=["s0", "s1"]), world.delete(samples=["s2"])]
    world.work(model_id)
    assert [world.task(request).samples for request in requests] == [2, 1]
    assert world.head(model_id).samples == 3


@pytest.mark.parametrize(("method", "granularity"), [("recollection", "sample"), ("retrain", "subject")])
def test_single_samples_are_forgotten_where_the_method_can(world: World, method: str, granularity: str) -> None:
    model_id = world.live(method=method, granularity=granularity)
    request = world.delete(samples=["s0"])
    world.work(model_id)
    assert (world.request(request).status, world.head(model_id).samples) == ("completed", 1)


def test_a_legal_hold_keeps_its_person_and_lets_the_others_go(world: World) -> None:
    model_id = world.live()
    world.hold("p1")
    held, free = world.delete("p1"), world.delete("p2")
    world.work(model_id)
    assert (world.request(held).reason, world.request(free).status) == ("legal_hold", "completed")
    assert world.head(model_id).samples == 3


@pytest.mark.both_engines
def test_a_legal_hold_that_appears_while_computing_is_respected(world: World) -> None:
    model_id = world.live(guarantee="proved")
    held, free = world.delete("p1"), world.delete("p2")
    meanwhile.HAPPENINGS.append(lambda: world.hold("p1"))
    world.work(model_id)
    assert (world.request(held).reason, world.request(free).status) == ("legal_hold", "completed")
    assert [(v.number, v.samples) for v in world.versions(model_id)] == [(1, 0), (2, 3)]
    assert world.generation(model_id).spent == world.generation(model_id).budget_cost


def test_a_request_that_arrives_while_computing_waits_for_the_next_release(world: World) -> None:
    model_id = world.live(guarantee="proved")
    first = world.delete("p1")
    late: list[str] = []
    meanwhile.HAPPENINGS.append(lambda: late.append(world.delete("p2")))
    world.work(model_id)
    assert (world.request(first).status, world.request(late[0]).status) == ("completed", "queued")
    assert world.model(model_id).due_at is not None
    world.work(model_id)
    assert world.request(late[0]).status == "completed"
    assert world.head(model_id).number == 3


@pytest.mark.parametrize(("recipe", "method"), [("convex", "recollection"), ("means", "retrain")])
def test_forgetting_everyone_is_held(world: World, recipe: str, method: str) -> None:
    model_id = world.live(recipe, method)
    requests = [world.delete(f"p{index}") for index in range(12)]
    world.work(model_id)
    assert {world.request(request).reason for request in requests} == {"no_data_left"}
    assert world.head(model_id).number == 1


def test_the_audit_log_tells_of_claim_release_and_destroyed_keys(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    kinds = world.kinds()
    assert kinds[-5:] == [
        "request.accepted",
        "update.claimed",
        "version.published",
        "request.completed",
        "keys.destroyed",
    ]
    published = json.loads(entries(world, "version.published")[-1].body)
    head = world.head(model_id)
    assert (published["version"], published["number"], published["parent"]) == (head.id, 2, head.parent_id)
    assert (published["checkpoint"], published["budget_cost"]) == (
        head.checkpoint,
        world.generation(model_id).budget_cost,
    )
    assert len(published["samples"]) == 3


def test_every_publication_names_its_claim_in_the_log(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    assert world.claims_logged(model_id) == 2


def test_equal_sized_forget_sets_publish_identical_facts(world: World) -> None:
    """Certificate, ledger and audit facts of two models that forgot different people agree, but for names."""
    models = {name: world.live(name=name) for name in ("one", "two")}
    facts = []
    for (name, model_id), person in zip(models.items(), ("p1", "p7"), strict=True):
        world.delete(person, models=(name,))
        world.work(model_id)
        head, generation = world.versions(model_id)[1], world.generation(model_id)
        facts.append((head.claim, head.samples, head.people, generation.spent, generation.budget_cost))
    assert facts[0] == facts[1]


def test_every_phase_of_an_update_is_timed(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    rows = world.rows_of(PhaseSeconds)
    assert {row.phase for row in rows} == {"claim", "load", "unlearn", "store"}
    assert {row.version_id for row in rows} == {world.head(model_id).id}
    assert {row.seconds for row in rows} <= set(BUCKETS)


@pytest.mark.both_engines
def test_keys_are_destroyed_after_the_commit_and_only_theirs(world: World) -> None:
    model_id = world.live()
    with world.database.read() as session:
        before = {row.holder: row.key_id for row in session.scalars(select(StoredVector))}
    world.delete("p3")
    world.work(model_id)
    erasures = world.rows_of(Erasure)
    assert len(erasures) == 1 and all(erasure.destroyed_at is not None for erasure in erasures)
    left = world.storage.keys.fetch(before.values())
    assert set(before.values()) - set(left) == {erasures[0].key_id}
    assert world.count(StoredVector) == 11


def test_the_secret_state_of_a_superseded_version_is_gone(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    world.work(model_id)
    names = names_in(world.storage.private)
    assert names == {world.head(model_id).state}


def test_a_failing_disk_discards_nothing(world: World, tmp_path: Path) -> None:
    model_id = world.live()
    request = world.delete("p3")
    private = root_of(world.storage.private)
    hidden = private.rename(tmp_path / "hidden")
    private.write_text("not a folder")
    world.work(model_id)
    assert (world.request(request).status, world.head(model_id).number) == ("queued", 1)
    assert "attempt.failed" in world.kinds()
    private.unlink()
    hidden.rename(private)
    world.work(model_id)
    assert world.request(request).status == "queued", "a failed attempt is followed by a pause"
    world.change(Model, model_id, due_at=None)
    world.work(model_id)
    assert world.request(request).status == "completed"


def test_a_store_that_does_not_answer_is_waited_for(world: World, tmp_path: Path) -> None:
    """Nothing is claimed meanwhile, so nothing is computed that could not be published."""
    model_id = world.live()
    request = world.delete("p3")
    store = root_of(world.storage.store)
    hidden = store.rename(tmp_path / "hidden")
    store.write_text("not a folder")
    world.work(model_id)
    assert (world.task(request).status, world.task(request).attempts) == ("queued", 0)
    assert world.kinds()[-1] == "request.accepted"
    store.unlink()
    hidden.rename(store)
    world.work(model_id)
    assert world.request(request).status == "completed"


def test_an_attempt_that_fails_three_times_is_held_with_its_reason(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    root_of(world.storage.private).rename(root_of(world.storage.private).with_name("away"))
    root_of(world.storage.private).write_text("not a folder")
    for _ in range(4):
        world.change(Model, model_id, due_at=None)
        world.work(model_id)
    held = world.request(request)
    assert (held.status, held.reason) == ("blocked", "failed")
    assert (world.task(request).facts or {})["failed"]["error"] == "ENOTDIR"


def test_a_request_whose_workers_die_three_times_is_held_as_worker_lost(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    for _ in range(3):
        assert world.claim(model_id) is not None
        world.expire_lease(model_id)
    assert world.claim(model_id) is None
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "failed")
    assert world.task(request).facts == {"failed": {"cause": "worker_lost"}}
    assert world.lease(model_id).token == 0
    body = json.loads(entries(world, "update.blocked")[-1].body)
    assert body["attempts"] == 3


def test_one_request_that_kills_workers_is_found_among_eight(world: World) -> None:
    """Every claim that holds the poisonous request dies; all others are released, and it alone is held."""
    model_id = world.live()
    requests = [world.delete(f"p{index}") for index in range(8)]
    poison = world.task(requests[5]).id
    for _ in range(40):
        job = world.claim(model_id)
        if job is None:
            break
        assert isinstance(job, Deletions)
        if poison in {task.id for task in job.tasks}:
            world.expire_lease(model_id)
        else:
            world.update(job)
    statuses = [world.request(request).status for request in requests]
    assert statuses == ["completed"] * 5 + ["blocked"] + ["completed"] * 2
    assert world.count(Removal) == 21


def entries(world: World, kind: str) -> list[AuditEntry]:
    with world.database.read() as session:
        return list(session.scalars(select(AuditEntry).where(AuditEntry.kind == kind).order_by(AuditEntry.id)))
