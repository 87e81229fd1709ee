"""Ids that are written nearly as others, where a model's people become known: at its first version and at a retrain."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, func, select

from expunge_client.spelling import PLAIN
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import DeletionRequest, Membership, Model, Removal, Spelling
from expunge_service.models import plan_new_data, retire
from expunge_service.models.generations import empty_generation
from expunge_service.requests import spelling_decisions
from expunge_service.requests.intake import NO_WINDOWS
from expunge_service.requests.legal_holds import place_hold
from expunge_service.requests.near_misses import SPELLINGS, Written
from expunge_workers.storage.spellings import Spellings, write
from expunge_workers.training import start
from tests.harness import spoiled_ids
from tests.workers.worlds import TENANT, World


def same(world: World, request_id: str, right: str) -> None:
    with world.database.write() as session:
        request = session.get_one(DeletionRequest, request_id)
        spelling_decisions.same_person(session, world.storage.pepper, request, right, NO_WINDOWS)


def other(world: World, request_id: str) -> None:
    with world.database.write() as session:
        spelling_decisions.other_person(session, session.get_one(DeletionRequest, request_id), NO_WINDOWS)


def rows(world: World, generation: int) -> set[tuple[int, int]]:
    with world.database.read() as session:
        found = session.execute(select(Spelling.form, Spelling.person).where(Spelling.generation_id == generation))
        return {(form, person) for form, person in found}


@pytest.mark.both_engines
def test_a_generation_has_the_forms_of_its_people_and_they_go_with_it(world: World) -> None:
    model = world.live()
    generation = world.model(model).generation_id or 0
    manifest = world.generation(model).manifest or {}
    assert manifest["members_frozen"] and SPELLINGS in manifest and rows(world, generation)
    with world.database.write() as session:
        empty_generation(session, generation)
    assert rows(world, generation) == set()


def test_a_request_that_came_during_the_preparation_is_asked_about_when_its_people_are_known(world: World) -> None:
    model = world.register()
    request = world.delete("P1")
    other_one = world.delete("P 2")
    world.work(model)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "near_miss")
    same(world, other_one, "p2")
    assert world.request(other_one).status == "queued"
    world.work(model)
    assert world.request(other_one).status == "completed" and world.head(model).number == 2


def test_a_prefix_that_another_models_ids_lack_waits_for_the_model_in_preparation(world: World) -> None:
    """Its people may have this very id, as they have here: then nobody is asked, as if it had been known before."""
    world.live(name="first")
    second = world.register("customers", name="second")
    request = world.delete("customer-1")
    assert world.request(request).status == "queued"
    world.work(second)
    assert (world.request(request).status, world.request(request).near) == ("completed", None)
    assert world.head(second).people == 0 and world.task(request).samples == 3


@pytest.mark.parametrize("models", [None, ("first", "second")], ids=["all", "named"])
@pytest.mark.parametrize("text", ["customer-1", "P1"])
def test_a_spelling_of_an_id_that_the_model_in_preparation_lacks_is_asked_about(
    world: World, text: str, models: tuple[str, ...] | None
) -> None:
    world.live(name="first")
    second = world.register(name="second")
    request = world.delete(text, models=models)
    world.work(second)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "near_miss")


def test_what_was_decided_about_an_id_holds_for_a_model_in_preparation_and_for_the_next_request(world: World) -> None:
    """Simulation, seed 230416: the second request, which waits for the model, was asked about once more at its end."""
    world.live(name="first")
    decided = world.delete("P1")
    other(world, decided)
    second = world.register(name="second")
    waiting = world.delete("P1")
    assert (world.request(waiting).status, world.request(waiting).near) == ("queued", None)
    world.work(second)
    for request in (decided, waiting):
        assert (world.request(request).status, world.request(request).near) == ("completed", None)
    assert world.head(second).people == 0, "p1 is another person, and stays"


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("text", "recipe", "ended"),
    [
        ("customer-1", "convex", "refused"),
        ("customer-1", "convex", "cancelled"),
        pytest.param("someone@mail.org", "crowd", "cancelled", id="of no usual shape"),
    ],
)
def test_an_id_is_asked_about_when_the_model_that_might_have_known_it_is_not_published(
    world: World, text: str, recipe: str, ended: str
) -> None:
    if recipe == "crowd":
        world.write_people(40)
    world.live(recipe, name="first")
    second = world.register("bad" if ended == "refused" else "convex", name="second")
    request = world.delete(text)
    assert world.request(request).status == "queued"
    if ended == "refused":
        world.work(second)
    else:
        with world.database.write() as session:
            retire(session, session.get_one(Model, second))
    assert world.model(second).status == ended
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "near_miss")
    other(world, request)
    assert world.request(request).status == "completed"


def test_a_registration_with_people_near_a_suppressed_id_is_refused_until_somebody_decides(world: World) -> None:
    request = world.delete("P1")
    assert world.request(request).reason == "no_match"
    first = world.register()
    world.work(first)
    model = world.model(first)
    assert model.status == "refused" and request in (model.reason or "") and "counted from 1" in (model.reason or "")
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "near_miss")
    other(world, request)
    assert (world.request(request).status, world.request(request).reason) == ("completed", "no_match")
    world.live()


@pytest.mark.both_engines
def test_the_fast_writing_equals_the_slow_one(world: World) -> None:
    pepper = world.storage.pepper
    ids = [each for shape in spoiled_ids.SHAPES for each in spoiled_ids.people(shape, 150, 3)]
    people = {each: subject_digest(pepper, TENANT, each) for each in ids}
    model = world.live()
    generation = world.model(model).generation_id or 0
    before = rows(world, generation)
    fast = Spellings.of(pepper, TENANT, people)
    with world.database.write() as session:
        for part in fast.parts():
            write(session, generation, part)
    slow = {
        (form, int.from_bytes(bytes.fromhex(digest[:8]), "big", signed=True))
        for subject, digest in people.items()
        for form in Written.of(pepper, TENANT, subject).forms.values()
    }
    assert rows(world, generation) - before == slow


def test_a_kind_of_form_that_merges_people_is_left_out(world: World) -> None:
    pepper = world.storage.pepper
    wards = {
        f"{ward}{number}": subject_digest(pepper, TENANT, f"{ward}{number}")
        for ward in "AB"
        for number in range(10, 60)
    }
    found = set(Spellings.of(pepper, TENANT, wards).forms.tolist())
    for subject in wards:
        forms = Written.of(pepper, TENANT, subject).forms
        assert all((kind in PLAIN) == (form in found) for kind, form in forms.items() if kind in (*PLAIN, "segments"))


def hold(world: World, subject: str) -> None:
    """A hold as the API places it, with how its id is written."""
    with world.database.write() as session:
        pepper = world.storage.pepper
        place_hold(session, pepper, TENANT, subject_id=subject, sample_id=None, reason="case 7")


def samples_of(world: World, model: str, subject: str) -> int:
    """How many samples of the person the model still has."""
    digest = subject_digest(world.storage.pepper, TENANT, subject)
    generation = world.model(model).generation_id
    gone = select(Removal.position).where(Removal.generation_id == generation)
    mine = select(func.count()).select_from(Membership).where(Membership.generation_id == generation)
    with world.database.read() as session:
        mine = mine.where(Membership.subject_digest == digest, Membership.position.not_in(gone))
        return session.scalar(mine) or 0


def waits_for_the_hold(world: World, model: str, request: str) -> None:
    row = world.request(request)
    assert (row.status, row.reason, (row.facts or {})["near_miss"]["cause"]) == ("blocked", "near_miss", "hold")
    assert samples_of(world, model, "p1") > 0, "what may be under the hold is kept"


@pytest.mark.both_engines
@pytest.mark.parametrize("order", ["hold, model, request", "model, hold, request", "hold, request, model"])
def test_a_hold_nearly_on_a_person_of_a_model_in_preparation_keeps_the_data_until_somebody_decides(
    world: World, order: str
) -> None:
    """While the people were not known, nobody could compare the hold with them."""
    model = request = ""
    for step in order.split(", "):
        match step:
            case "hold":
                hold(world, "P1")
            case "model":
                model = world.register()
            case _:
                request = world.delete("p1")
    world.work(model)
    world.work(model)
    assert world.model(model).status == "live"
    waits_for_the_hold(world, model, request)
    other(world, request)
    world.work(model)
    assert world.request(request).status == "completed" and samples_of(world, model, "p1") == 0


def asks(world: World, subject: str) -> bool:
    """Whether a hold on this id is asked about before it is placed."""
    with world.database.read() as session:
        return spelling_decisions.question_about_hold(session, world.storage.pepper, TENANT, subject) is not None


def test_a_hold_nearly_on_somebody_to_be_deleted_from_a_model_in_preparation_is_asked_about(world: World) -> None:
    """The hold was placed, kept nobody, and the first version was published without the person."""
    model = world.register()
    request = world.delete("p1")
    assert asks(world, "P1") and not asks(world, "p1") and not asks(world, "P2")
    hold(world, "p1")
    world.work(model)
    world.work(model)
    row = world.request(request)
    assert (row.status, world.task(request).reason) == ("blocked", "legal_hold") and samples_of(world, model, "p1") > 0
    assert not asks(world, "p1") and asks(world, "P2"), "the people are known now"


def test_the_right_hold_that_follows_the_question_keeps_the_data(world: World) -> None:
    model = world.register()
    hold(world, "P1")
    request = world.delete("p1")
    world.work(model)
    waits_for_the_hold(world, model, request)
    hold(world, "p1")
    other(world, request)
    world.work(model)
    row = world.request(request)
    assert (row.status, world.task(request).reason) == ("blocked", "legal_hold") and samples_of(world, model, "p1") > 0


def test_a_misspelled_request_and_the_right_hold_during_the_preparation(world: World) -> None:
    model = world.register()
    request = world.delete("P1")
    hold(world, "p1")
    world.work(model)
    world.work(model)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "near_miss")
    assert samples_of(world, model, "p1") > 0
    same(world, request, "p1")
    world.work(model)
    assert world.task(request).reason == "legal_hold" and samples_of(world, model, "p1") > 0


def test_what_was_compared_exactly_only_is_asked_about_at_the_next_training(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation of release 0.2 has no spellings. Its person stays in the model until somebody decides."""
    with monkeypatch.context() as earlier:
        earlier.setattr(start, "SPELLINGS", "of no release")
        model_id = world.live(guarantee="proved")
    old = world.generation(model_id).id
    with world.database.write() as session:
        session.execute(delete(Spelling))
    request, nobodys = world.delete("P1"), world.delete("P99")
    assert world.request(request).facts == world.request(nobodys).facts
    assert (world.request(request).reason, world.request(request).facts["no_match"]["cause"]) == ("no_match", "exactly")
    with world.database.write() as session:
        plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
    world.work(model_id)
    assert world.generation(model_id).id != old
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "near_miss")
    assert (world.request(nobodys).status, world.request(nobodys).reason) == ("completed", "no_match")
    assert world.head(model_id).people == 0, "nobody was left out meanwhile"
    same(world, request, "p1")
    world.work(model_id)
    assert world.request(request).status == "completed" and world.head(model_id).number == 3


@pytest.mark.parametrize("twins", ["ask", "ignore"])
def test_a_decision_for_one_model_does_not_finish_the_request_for_another(world: World, twins: str) -> None:
    """The misspelled id counts as deleted in the first model alone."""
    first, second = (world.live(name=name, twins=twins) for name in ("first", "second"))
    limited = world.delete("P1", models=("first",))
    same(world, limited, "p1")
    world.work(first)
    assert world.request(limited).status == "completed"
    request = world.delete("P1")
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "near_miss")
    same(world, request, "p1")
    for model_id in (first, second):
        world.work(model_id)
    assert world.request(request).status == "completed" and world.head(second).number == 2
