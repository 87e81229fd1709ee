"""A state's deletion lists: whom they name leaves every model, stays out of later ones, and the state is answered."""

from __future__ import annotations

import base64
import csv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from connect.tests.conftest import key_for
from expunge_client import Expunge
from expunge_client.cli.main import app
from expunge_connect.drop import admission, items
from expunge_connect.drop.identifiers import hash_of
from expunge_connect.drop.items import (
    AnswerCode,
    Feed,
    answers,
    count_open,
    mark_checked,
    match,
    refresh,
    status_of,
    store,
)
from expunge_connect.drop.lists import ListEntry
from expunge_service.access.api_keys import Scope
from expunge_service.infra.tables import DeletionRequest, Version
from expunge_service.requests.legal_holds import place_hold
from tests.workers.worlds import TENANT, World

Drop = Callable[..., dict[str, Any]]
SOURCE = "20261101_4821"
EVERYBODY = tuple(f"p{number}" for number in range(12))
"""of the recipe ``convex``"""


def mail_of(person: str) -> str:
    return f"{person}@example.org"


def entry(item: str, person: str) -> ListEntry:
    found = hash_of("Email", {"email": mail_of(person)})
    assert found is not None
    return ListEntry(item.ljust(12, "0"), found, "Email")


def write_list(folder: Path, name: str, *entries: ListEntry) -> Path:
    removed = name.endswith("_Removed.csv")
    with (folder / name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "Hash", *(["ListType"] if removed else [])])
        for each in entries:
            writer.writerow([each.item, base64.b64encode(each.hash).decode(), *([each.list_name] if removed else [])])
    return folder / name


def write_people(folder: Path, *people: str, mails: dict[str, str] | None = None) -> Path:
    with (folder / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "email"])
        writer.writerows([person, (mails or {}).get(person, mail_of(person))] for person in people)
    return folder / "people.csv"


@pytest.fixture
def feed(folder: Path) -> Iterator[Feed]:
    opened = Feed.open(folder)
    yield opened
    opened.database.close()


def rows(feed: Feed, table: str) -> int:
    return int(feed.database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def answered(folder: Path, name: str) -> dict[str, int]:
    with (folder / name).open() as file:
        return {row["Id"].rstrip("0"): int(row["Status"]) for row in csv.DictReader(file)}


def test_from_the_download_to_the_answer(world: World, drop: Drop, tmp_path: Path) -> None:
    """p1 is deleted, p2 under a hold, p3 and p4 share an address, nobody knows the stranger."""
    model_id = world.live(guarantee="proved")
    with world.database.write() as session:
        place_hold(session, world.storage.pepper, TENANT, subject_id="p2", sample_id=None, reason="court")
    named = [entry("one", "p1"), entry("two", "p2"), entry("both", "p3"), entry("none", "stranger")]
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", *named)
    people = write_people(tmp_path, "p1", "p2", "p3", "p4", "p5", mails={"p4": mail_of("p3")})

    first = drop("import", str(listed))
    assert first["items"] == 4 and drop("status") == {"waiting": 4, "to_report": 0}
    assert drop("import", str(listed), "--identities", str(people)) == {
        "items": 0,
        "withdrawn_too_late": 0,
        "people": 5,
        "hashed": {"Email": 5},
        "uncompared": 0,
        "requests": 2,
        "shared": 1,
    }
    assert drop("match", "--identities", str(people))["requests"] == 0, "a person is asked for once"
    world.work(model_id)

    given = drop("export", str(tmp_path / "out"))
    assert given == {"answers": 4, "waiting": 0, "files": [f"{SOURCE}_Email.csv"]}
    assert answered(tmp_path / "out", f"{SOURCE}_Email.csv") == {"one": 3, "two": 2, "both": 4, "none": 5}
    assert drop("export", str(tmp_path / "again"))["answers"] == 0

    requests = {row.id: row for row in world.rows_of(DeletionRequest)}
    assert [row.regulation for row in requests.values()] == ["delete-act", "delete-act"]
    assert len({row.due_at for row in requests.values()}) == 1, "45 days after the day of the download"


def test_who_is_registered_later_stays_out_and_the_answer_is_amended(
    world: World, drop: Drop, folder: Path, tmp_path: Path
) -> None:
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("late", "p1"), entry("none", "stranger"))
    drop("import", str(listed), "--identities", str(write_people(tmp_path, "somebody")))
    assert drop("export", str(tmp_path / "out"))["answers"] == 2

    refused = world.register("convex", name="unchecked")
    world.work(refused)
    assert "2 entries" in (world.model(refused).reason or "")

    write_people(folder, *EVERYBODY, "stranger")
    model_id = world.live("convex", name="m")
    assert "p1" not in members(world, model_id) and "p2" in members(world, model_id)
    assert "admission.left_out" in world.kinds() and world.count(DeletionRequest) == 0
    assert drop("match")["requests"] == 2
    world.work(model_id)
    given = drop("export", str(tmp_path / "changed"))
    assert given["files"] == [f"{SOURCE}_Email_amended.csv"]
    assert answered(tmp_path / "changed", given["files"][0]) == {"late": 3, "none": 3}


def test_who_shares_an_identifier_with_somebody_outside_the_recipe_is_not_deleted(
    world: World, drop: Drop, folder: Path, tmp_path: Path
) -> None:
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("both", "p1"))
    drop("import", str(listed))
    write_people(folder, *EVERYBODY, "elsewhere", mails={"elsewhere": mail_of("p1")})
    model_id = world.live("convex")
    assert drop("match")["shared"] == 1
    assert "p1" in members(world, model_id) and world.count(DeletionRequest) == 0
    assert drop("status") == {"opted_out": 1, "to_report": 1}


def test_an_entry_that_came_during_the_comparison_is_not_answered(feed: Feed, service: Expunge) -> None:
    """Nobody was compared with it: "not found" would be said of somebody who may be there."""
    store(feed, SOURCE, [entry("early", "stranger"), entry("twin", "stranger")])

    def people() -> Iterator[dict[str, str]]:
        yield {"person": "p1", "email": mail_of("p1")}
        store(feed, SOURCE, [entry("late", "p1")])

    mark_checked(feed, match(feed, service, people())[0])
    given = {each.item.rstrip("0"): each.status for each in answers(feed)}
    assert given == {"early": AnswerCode.NOT_FOUND, "twin": AnswerCode.NOT_FOUND}


def test_an_entry_that_was_compared_with_nobody_is_not_answered(
    world: World, drop: Drop, folder: Path, tmp_path: Path
) -> None:
    """The file has no telephone numbers: whether p1 is meant by the second list, nobody knows."""
    number = hash_of("Phone", {"phone": "4155559317"})
    assert number is not None
    mails = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("mail", "stranger"))
    phones = write_list(tmp_path, f"{SOURCE}_Phone.csv", ListEntry("phone".ljust(12, "0"), number, "Phone"))
    write_people(folder, *EVERYBODY)
    found = drop("import", str(mails), str(phones))
    assert (found["hashed"], found["uncompared"]) == ({"Email": len(EVERYBODY), "Phone": 0}, 1)
    assert drop("export", str(tmp_path / "out")) == {"answers": 1, "waiting": 1, "files": [f"{SOURCE}_Email.csv"]}

    refused = world.register("convex", name="m")
    world.work(refused)
    assert "The admission check drop refuses: 1 entries" in (world.model(refused).reason or "")


def test_a_column_whose_cells_say_nothing_is_no_comparison(feed: Feed, service: Expunge) -> None:
    found = hash_of("Phone", {"phone": "4155559317"})
    assert found is not None
    store(feed, SOURCE, [ListEntry("phone".ljust(12, "0"), found, "Phone")])
    mark_checked(feed, match(feed, service, [{"person": "p1", "phone": each} for each in ("", "unknown")])[0])
    assert list(answers(feed)) == []


@pytest.mark.parametrize("text", ["person,email\n", "person,email,email\np1,a@b.c,d@e.f\n"])
def test_a_file_without_people_or_with_a_column_twice_is_refused(drop: Drop, tmp_path: Path, text: str) -> None:
    drop("import", str(write_list(tmp_path, f"{SOURCE}_Email.csv", entry("one", "p1"))))
    (tmp_path / "people.csv").write_text(text)
    done = CliRunner().invoke(app, ["drop", "match", "--identities", str(tmp_path / "people.csv")])
    assert done.exit_code == 1
    assert drop("status") == {"waiting": 1, "to_report": 0}


def test_a_withdrawal_that_is_read_before_its_list_is_honoured(world: World, drop: Drop, tmp_path: Path) -> None:
    """The state took the entry back: its person is not deleted, and it is not answered."""
    model_id = world.live(guarantee="proved")
    gone, kept = entry("gone", "p1"), entry("kept", "p2")
    drop("import", str(write_list(tmp_path, f"{SOURCE}_Removed.csv", gone)))
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", gone, kept)
    found = drop("import", str(listed), "--identities", str(write_people(tmp_path, "p1", "p2", "p3")))
    assert (found["items"], found["requests"]) == (1, 1)
    world.work(model_id)
    drop("export", str(tmp_path / "out"))
    assert answered(tmp_path / "out", f"{SOURCE}_Email.csv") == {"kept": 3}


def test_a_download_that_unpacks_without_end_is_refused(drop: Drop, tmp_path: Path) -> None:
    """One megabyte of zeros packed a thousandfold, and one line of a list that never ends."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{SOURCE}_Email.csv", "0" * 1_000_000)
    (tmp_path / f"{SOURCE}_Phone.csv").write_text("ID,Hash\n" + "0" * 20_000)
    for name, what in (("bomb.zip", "times its size"), (f"{SOURCE}_Phone.csv", "10000 characters")):
        done = CliRunner().invoke(app, ["drop", "import", str(tmp_path / name)])
        assert done.exit_code == 1 and what in str(done.exception)
    dice = Random(7)
    entries = [ListEntry(f"{number:012d}", dice.randbytes(32), "Email") for number in range(500)]
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", *entries)
    with zipfile.ZipFile(tmp_path / "honest.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.write(listed, listed.name)
    assert drop("import", str(tmp_path / "honest.zip"))["items"] == 500


def test_a_request_that_another_entry_still_asks_for_is_not_counted_as_withdrawn_too_late(
    world: World, drop: Drop, tmp_path: Path
) -> None:
    world.live(guarantee="proved")
    first, second = entry("first", "p1"), entry("second", "p1")
    people = write_people(tmp_path, "p1")
    drop("import", str(write_list(tmp_path, f"{SOURCE}_Email.csv", first, second)), "--identities", str(people))
    removed = write_list(tmp_path, f"{SOURCE}_Removed.csv", first)
    assert drop("import", str(removed)) == {"items": 0, "withdrawn_too_late": 0}
    assert [row.status for row in world.rows_of(DeletionRequest)] == ["queued"]


def retrain(world: World, url: str, model_id: str) -> None:
    key = {"Authorization": f"Bearer {key_for(world, *Scope)}"}
    before = world.generation(model_id).id
    httpx.post(f"{url}/v1/models/m/retrains", json={}, headers=key, trust_env=False).raise_for_status()
    world.work(model_id)
    assert world.generation(model_id).id > before


def members(world: World, model_id: str) -> set[str]:
    """Who is in the served generation, of the people p0 to p11."""
    from expunge_service.infra.pseudonyms import subject_digest  # noqa: PLC0415
    from expunge_service.infra.tables import Membership  # noqa: PLC0415

    generation = world.generation(model_id).id
    digests = {row.subject_digest for row in world.rows_of(Membership) if row.generation_id == generation}
    everyone = {f"p{number}" for number in range(12)}
    return {each for each in everyone if subject_digest(world.storage.pepper, TENANT, each) in digests}


def test_what_the_state_withdraws_is_cancelled_where_it_still_can_be(
    world: World, drop: Drop, folder: Path, tmp_path: Path
) -> None:
    model_id = world.live(guarantee="proved")
    gone, kept = entry("gone", "stranger"), entry("kept", "p1")
    people = write_people(tmp_path, "p1")
    drop("import", str(write_list(tmp_path, f"{SOURCE}_Email.csv", gone, kept)), "--identities", str(people))
    world.work(model_id)
    removed = write_list(tmp_path, f"{SOURCE}_Removed.csv", gone, kept)
    assert drop("import", str(removed)) == {"items": 0, "withdrawn_too_late": 1}
    assert drop("status") == {}, "what was withdrawn is not answered"
    write_people(folder, *EVERYBODY)
    later = world.live("convex", name="later", leave_out_forgotten=True)
    assert "p1" not in members(world, later), "who was deleted stays out"


def test_an_import_that_was_interrupted_is_repeated(
    world: World, feed: Feed, service: Expunge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between two calls, and after a call before it is noted; afterwards everything is there once."""
    monkeypatch.setattr(items, "ROWS", 2)
    monkeypatch.setattr(items, "PEOPLE", 1)
    world.live(guarantee="proved")
    entries = [entry(f"i{number}", f"p{number}") for number in range(5)]
    people = [{"person": f"p{number}", "email": mail_of(f"p{number}")} for number in range(5)]

    def dying(left: int, values: list[Any]) -> Any:
        for number, each in enumerate(values):
            if number == left:
                raise KeyboardInterrupt
            yield each

    with pytest.raises(KeyboardInterrupt):
        store(feed, SOURCE, dying(3, entries))
    assert store(feed, SOURCE, entries) == 3
    real, calls = service.delete_many, []

    def third_dies(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        answer = real(*arguments, **named)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(service, "delete_many", third_dies)
    with pytest.raises(KeyboardInterrupt):
        match(feed, service, people)
    assert (rows(feed, "matches"), world.count(DeletionRequest)) == (2, 3)
    assert len(match(feed, service, people)[1]) == 3
    assert (rows(feed, "items"), rows(feed, "matches"), world.count(DeletionRequest)) == (5, 5, 5)


def test_answers_equal_those_of_the_obvious_way(feed: Feed, service: Expunge) -> None:
    """600 entries of all lists against 300 people, some of whom share identifiers."""
    dice = Random(20261122)
    people = []
    for number in range(300):
        whose = dice.choice([number, number, number, dice.randrange(300)])
        people.append({"person": f"x{number}", "email": f"m{whose}@b.c", "phone": f"{5550000000 + whose}"})
    entries, expected = [], {}
    for number in range(600):
        list_name, whose = dice.choice(["Email", "Phone"]), dice.randrange(600)
        row = {"email": f"M{whose}@b.c ", "phone": f"+1 {5550000000 + whose}"}
        found = hash_of(list_name, row)
        assert found is not None
        item = f"{number:012d}"
        entries.append(ListEntry(item, found, list_name))
        same = [each for each in people if hash_of(list_name, each) == found]
        several = AnswerCode.OPTED_OUT if len(same) > 1 else AnswerCode.DELETED
        expected[item] = several if same else AnswerCode.NOT_FOUND
    assert store(feed, SOURCE, entries) == 600
    mark_checked(feed, match(feed, service, people)[0])
    refresh(feed, service)
    assert {each.item: each.status for each in answers(feed)} == expected
    assert set(expected.values()) == {AnswerCode.NOT_FOUND, AnswerCode.OPTED_OUT, AnswerCode.DELETED}


@pytest.mark.parametrize(
    ("requests", "status"),
    [
        ([], AnswerCode.NOT_FOUND),
        ([("completed", None)], AnswerCode.DELETED),
        ([("completed", None), ("running", None)], None),
        ([("blocked", "legal_hold")], AnswerCode.EXEMPTED),
        ([("blocked", "large")], None),
        ([("cancelled", None)], None),
    ],
)
def test_an_item_is_answered_by_what_became_of_its_requests(requests: list[Any], status: AnswerCode | None) -> None:
    assert status_of(shared=False, checked=True, requests=requests) == status
    assert status_of(shared=True, checked=False, requests=()) == AnswerCode.OPTED_OUT
    assert status_of(shared=False, checked=False, requests=()) is None


def test_no_identifier_and_no_hash_of_one_is_stored(world: World, drop: Drop, folder: Path, tmp_path: Path) -> None:
    """Everything that Expunge has written is searched, byte by byte."""
    model_id = world.live(guarantee="proved")
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("one", "p1"), entry("none", "stranger"))
    people = write_people(tmp_path, "p1", "p2")
    drop("import", str(listed), "--identities", str(people))
    world.work(model_id)
    drop("export", str(tmp_path / "out"))
    hashes = [entry("x", person).hash for person in ("p1", "p2", "stranger")]
    needles = [mail_of(person).encode() for person in ("p1", "p2", "stranger")]
    for found in hashes:
        needles += [found, found.hex().encode(), base64.b64encode(found)]
    files = [each for each in world.settings.home.rglob("*") if each.is_file()] + list(tmp_path.glob("expunge.db*"))
    files += [each for each in folder.rglob("*") if each.is_file()]
    content = b"".join(each.read_bytes() for each in files)
    assert len(content) > 100_000, "there is something to search"
    assert [needle for needle in needles if needle in content] == []


def test_a_request_that_the_service_lost_is_asked_for_again_and_not_answered(
    world: World, feed: Feed, service: Expunge
) -> None:
    """The service was restored from a backup that is older than the request."""
    world.live(guarantee="proved")
    store(feed, SOURCE, [entry("one", "p1")])
    people = [{"person": "p1", "email": mail_of("p1")}]
    found, (request,) = match(feed, service, people)
    mark_checked(feed, found)
    feed.database.execute("UPDATE matches SET request = ?", ["0" * 32])
    refresh(feed, service)
    assert list(answers(feed)) == [], "the person is known: it must not be answered that nobody was found"
    assert len(match(feed, service, people)[1]) == 1 and request != "0" * 32


def test_a_state_is_answered_once_what_left_is_destroyed(world: World, feed: Feed, service: Expunge) -> None:
    model_id = world.live(guarantee="proved")
    store(feed, SOURCE, [entry("one", "p1")])
    mark_checked(feed, match(feed, service, [{"person": "p1", "email": mail_of("p1")}])[0])
    world.work(model_id)
    first = world.versions(model_id)[0]
    for gone, told in ((None, []), (1, [AnswerCode.DELETED])):
        world.change(Version, first.id, state_deleted_at=gone)
        refresh(feed, service)
        assert [each.status for each in answers(feed)] == told


def test_a_key_of_another_tenant_answers_for_nobody(
    world: World, drop: Drop, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the person is unknown, and the state would be told that she was deleted."""
    world.live(guarantee="proved")
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("one", "p1"))
    write_people(folder, *EVERYBODY)
    done = CliRunner().invoke(app, ["drop", "import", str(listed), "--tenant", "other"])
    assert done.exit_code == 1 and "The API key is of the tenant default" in str(done.exception)
    drop("import", str(listed))
    assert world.count(DeletionRequest) == 1


def test_a_registration_is_refused_where_a_list_could_be_compared_with_nobody_and_says_what_to_run(
    world: World, feed: Feed, folder: Path
) -> None:
    """No file, a file that lacks people, and a file that cannot be read: nobody is trained on."""
    store(feed, SOURCE, [entry("one", "p1")])
    assert count_open(feed) == 1

    def reason(name: str) -> str:
        model_id = world.register("convex", name=name)
        world.work(model_id)
        assert world.model(model_id).status == "refused"
        return world.model(model_id).reason or ""

    assert f"{folder / 'people.csv'} is not there" in reason("without")
    write_people(folder, *EVERYBODY[:-1])
    assert f"1 of {len(EVERYBODY)} people of the recipe have no line" in reason("one-short")
    (folder / "people.csv").write_text("person,email\np1,a@b.c,too many\n")
    said = reason("damaged")
    assert "The admission check drop could not be asked (ValueError)" in said and "expunge drop status" in said
    (folder / "secret").write_bytes(b"another")
    assert "could not be asked (ValueError)" in reason("secret")


def test_a_folder_that_is_named_and_not_there_refuses_and_one_without_lists_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admission.check(TENANT, ["p1"]) == admission.Admission()
    monkeypatch.setenv("EXPUNGE_CONNECT_HOME", str(folder / "elsewhere"))
    assert "is no folder here" in (admission.check(TENANT, ["p1"]).refusal or "")
    monkeypatch.delenv("EXPUNGE_CONNECT_HOME")
    monkeypatch.setenv("EXPUNGE_HOME", str(folder / "home"))
    assert admission.check(TENANT, ["p1"]) == admission.Admission()
    monkeypatch.setenv("EXPUNGE_ADMISSION", "other, drop")
    assert "holds no deletion lists here" in (admission.check(TENANT, ["p1"]).refusal or ""), "it must be asked"
    Feed.open(folder / "home" / "connect" / TENANT).database.close()
    assert admission.check(TENANT, ["p1"]) == admission.Admission()


def test_a_retrain_leaves_out_whom_a_list_names_and_goes_on_where_it_cannot_tell(
    world: World, url: str, feed: Feed, folder: Path
) -> None:
    model_id = world.live("convex")
    store(feed, SOURCE, [entry("one", "p1")])
    retrain(world, url, model_id)
    assert "admission.unchecked" in world.kinds() and "p1" in members(world, model_id)
    write_people(folder, *EVERYBODY)
    retrain(world, url, model_id)
    assert "p1" not in members(world, model_id)
