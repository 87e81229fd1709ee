"""A state's deletion lists: whom they name leaves every model, stays out of later ones, and the state is answered."""

from __future__ import annotations

import base64
import csv
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from expunge.service.cli.main import app
from expunge.service.connect.drop.identifiers import hash_of
from expunge.service.connect.drop.items import AnswerCode, Feed, answers, mark_checked, match, status_of, store
from expunge.service.connect.drop.lists import ListEntry
from expunge.service.infra.tables import DeletionRequest, FeedItem, FeedMatch
from expunge.service.requests.legal_holds import place
from expunge.workers.scheduler.restore import restore
from tests.workers.test_restore import Snapshot, export, signer, snapshot
from tests.workers.worlds import TENANT, World

__all__ = ["snapshot"]

Expunge = Callable[..., dict[str, Any]]
SOURCE = "20261101_4821"


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
def expunge(world: World, monkeypatch: pytest.MonkeyPatch) -> Expunge:
    monkeypatch.setenv("EXPUNGE_HOME", str(world.settings.home))
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", world.settings.database_url)
    monkeypatch.setenv("EXPUNGE_BROKER_URL", world.settings.broker_url)
    monkeypatch.setenv("EXPUNGE_SECRETS", str(world.settings.secrets))

    def run(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["drop", *words, "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def answered(folder: Path, name: str) -> dict[str, int]:
    with (folder / name).open() as file:
        return {row["Id"].rstrip("0"): int(row["Status"]) for row in csv.DictReader(file)}


def test_from_the_download_to_the_answer(world: World, expunge: Expunge, tmp_path: Path) -> None:
    """p1 is deleted, p2 under a hold, p3 and p4 share an address, nobody knows the stranger."""
    model_id = world.live(guarantee="proved")
    with world.database.write() as session:
        place(session, world.storage.pepper, TENANT, subject_id="p2", sample_id=None, reason="court")
    named = [entry("one", "p1"), entry("two", "p2"), entry("both", "p3"), entry("none", "stranger")]
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", *named)
    people = write_people(tmp_path, "p1", "p2", "p3", "p4", "p5", mails={"p4": mail_of("p3")})

    first = expunge("import", str(listed))
    assert first["items"] == 4 and expunge("status") == {"waiting": 4, "to_report": 0}
    assert expunge("import", str(listed), "--identities", str(people)) == {
        "items": 0,
        "withdrawn_too_late": 0,
        "people": 5,
        "hashed": {"Email": 5},
        "uncompared": 0,
        "requests": 2,
        "shared": 1,
    }
    assert expunge("match", "--identities", str(people))["requests"] == 0, "a person is asked for once"
    world.work(model_id)

    given = expunge("export", str(tmp_path / "out"))
    assert given == {"answers": 4, "waiting": 0, "files": [f"{SOURCE}_Email.csv"]}
    assert answered(tmp_path / "out", f"{SOURCE}_Email.csv") == {"one": 3, "two": 2, "both": 4, "none": 5}
    assert expunge("export", str(tmp_path / "again"))["answers"] == 0

    requests = {row.id: row for row in world.rows_of(DeletionRequest)}
    assert [row.regulation for row in requests.values()] == ["delete-act", "delete-act"]
    assert len({row.due_at for row in requests.values()}) == 1, "45 days after the day of the download"


def test_who_is_registered_later_stays_out_and_the_answer_is_amended(
    world: World, expunge: Expunge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("late", "p1"), entry("none", "stranger"))
    monkeypatch.setenv("LISTED_PEOPLE", str(write_people(tmp_path, "somebody")))
    expunge("import", str(listed), "--identities", str(tmp_path / "people.csv"))
    assert expunge("export", str(tmp_path / "out"))["answers"] == 2

    refused = world.register("convex", name="unchecked")
    world.work(refused)
    assert "2 entries" in (world.model(refused).reason or "")

    write_people(tmp_path, "p1", "p2", "stranger")
    model_id = world.live("listed", name="m")
    assert "p1" not in members(world, model_id) and "p2" in members(world, model_id)
    given = expunge("export", str(tmp_path / "changed"))
    assert given["files"] == [f"{SOURCE}_Email_amended.csv"]
    assert answered(tmp_path / "changed", given["files"][0]) == {"late": 3, "none": 3}


def test_who_shares_an_identifier_with_somebody_outside_the_recipe_is_not_deleted(
    world: World, expunge: Expunge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("both", "p1"))
    expunge("import", str(listed))
    everybody = write_people(tmp_path, "p1", "elsewhere", mails={"elsewhere": mail_of("p1")})
    monkeypatch.setenv("LISTED_PEOPLE", str(everybody))
    model_id = world.live("listed")
    assert "p1" in members(world, model_id) and world.count(DeletionRequest) == 0
    assert expunge("status") == {"opted_out": 1, "to_report": 1}


def test_an_entry_that_came_during_the_comparison_is_not_answered(world: World) -> None:
    """Nobody was compared with it: "not found" would be said of somebody who may be there."""
    feed = Feed(world.database, world.storage.pepper, TENANT)
    store(feed, SOURCE, [entry("early", "stranger"), entry("twin", "stranger")])

    def people() -> Iterator[dict[str, str]]:
        yield {"person": "p1", "email": mail_of("p1")}
        store(feed, SOURCE, [entry("late", "p1")])

    mark_checked(feed, match(feed, people()))
    with world.database.read() as session:
        given = {each.item.rstrip("0"): each.status for each in answers(session, TENANT)}
    assert given == {"early": AnswerCode.NOT_FOUND, "twin": AnswerCode.NOT_FOUND}


def test_an_entry_that_was_compared_with_nobody_is_not_answered(
    world: World, expunge: Expunge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has no telephone numbers: whether p1 is meant by the second list, nobody knows."""
    number = hash_of("Phone", {"phone": "4155559317"})
    assert number is not None
    mails = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("mail", "stranger"))
    phones = write_list(tmp_path, f"{SOURCE}_Phone.csv", ListEntry("phone".ljust(12, "0"), number, "Phone"))
    people = write_people(tmp_path, "p1", "p2")
    found = expunge("import", str(mails), str(phones), "--identities", str(people))
    assert (found["hashed"], found["uncompared"]) == ({"Email": 2, "Phone": 0}, 1)
    assert expunge("export", str(tmp_path / "out")) == {"answers": 1, "waiting": 1, "files": [f"{SOURCE}_Email.csv"]}

    monkeypatch.setenv("LISTED_PEOPLE", str(people))
    refused = world.register("listed", name="m")
    world.work(refused)
    assert "1 entries" in (world.model(refused).reason or "")
    accepted = world.register("listed", name="accepted", on_unchecked_feed="accept")
    world.work(accepted)
    assert world.model(accepted).status == "live" and "feed.unchecked" in world.kinds()


def test_a_column_whose_cells_say_nothing_is_no_comparison(world: World) -> None:
    found = hash_of("Phone", {"phone": "4155559317"})
    assert found is not None
    feed = Feed(world.database, world.storage.pepper, TENANT)
    store(feed, SOURCE, [ListEntry("phone".ljust(12, "0"), found, "Phone")])
    mark_checked(feed, match(feed, [{"person": "p1", "phone": each} for each in ("", "unknown")]))
    with world.database.read() as session:
        assert list(answers(session, TENANT)) == []


@pytest.mark.parametrize("text", ["person,email\n", "person,email,email\np1,a@b.c,d@e.f\n"])
def test_a_file_without_people_or_with_a_column_twice_is_refused(
    world: World, expunge: Expunge, tmp_path: Path, text: str
) -> None:
    del world
    expunge("import", str(write_list(tmp_path, f"{SOURCE}_Email.csv", entry("one", "p1"))))
    (tmp_path / "people.csv").write_text(text)
    done = CliRunner().invoke(app, ["drop", "match", "--identities", str(tmp_path / "people.csv")])
    assert done.exit_code == 1
    assert expunge("status") == {"waiting": 1, "to_report": 0}


def test_a_withdrawal_that_is_read_before_its_list_is_honoured(world: World, expunge: Expunge, tmp_path: Path) -> None:
    """The state took the entry back: its person is not deleted, and it is not answered."""
    model_id = world.live(guarantee="proved")
    gone, kept = entry("gone", "p1"), entry("kept", "p2")
    expunge("import", str(write_list(tmp_path, f"{SOURCE}_Removed.csv", gone)))
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", gone, kept)
    found = expunge("import", str(listed), "--identities", str(write_people(tmp_path, "p1", "p2", "p3")))
    assert (found["items"], found["requests"]) == (1, 1)
    world.work(model_id)
    expunge("export", str(tmp_path / "out"))
    assert answered(tmp_path / "out", f"{SOURCE}_Email.csv") == {"kept": 3}


def test_a_download_that_unpacks_without_end_is_refused(world: World, expunge: Expunge, tmp_path: Path) -> None:
    """One megabyte of zeros packed a thousandfold, and one line of a list that never ends."""
    del world
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
    assert expunge("import", str(tmp_path / "honest.zip"))["items"] == 500


def test_a_request_that_another_entry_still_asks_for_is_not_counted_as_withdrawn_too_late(
    world: World, expunge: Expunge, tmp_path: Path
) -> None:
    world.live(guarantee="proved")
    first, second = entry("first", "p1"), entry("second", "p1")
    people = write_people(tmp_path, "p1")
    expunge("import", str(write_list(tmp_path, f"{SOURCE}_Email.csv", first, second)), "--identities", str(people))
    removed = write_list(tmp_path, f"{SOURCE}_Removed.csv", first)
    assert expunge("import", str(removed)) == {"items": 0, "withdrawn_too_late": 0}
    assert [row.status for row in world.rows_of(DeletionRequest)] == ["queued"]


def members(world: World, model_id: str) -> set[str]:
    """Who is in the served generation, of the people p0 to p11."""
    from expunge.service.infra.pseudonyms import subject_digest  # noqa: PLC0415
    from expunge.service.infra.tables import Membership  # noqa: PLC0415

    generation = world.generation(model_id).id
    digests = {row.subject_digest for row in world.rows_of(Membership) if row.generation_id == generation}
    everyone = {f"p{number}" for number in range(12)}
    return {each for each in everyone if subject_digest(world.storage.pepper, TENANT, each) in digests}


def test_a_registration_may_accept_that_nobody_was_compared(world: World, expunge: Expunge, tmp_path: Path) -> None:
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("one", "p1"))
    expunge("import", str(listed))
    model_id = world.live("convex", on_unchecked_feed="accept")
    assert "p1" in members(world, model_id)
    assert "feed.unchecked" in world.kinds()


def test_what_the_state_withdraws_is_cancelled_where_it_still_can_be(
    world: World, expunge: Expunge, tmp_path: Path
) -> None:
    model_id = world.live(guarantee="proved")
    gone, kept = entry("gone", "stranger"), entry("kept", "p1")
    people = write_people(tmp_path, "p1")
    expunge("import", str(write_list(tmp_path, f"{SOURCE}_Email.csv", gone, kept)), "--identities", str(people))
    world.work(model_id)
    removed = write_list(tmp_path, f"{SOURCE}_Removed.csv", gone, kept)
    assert expunge("import", str(removed)) == {"items": 0, "withdrawn_too_late": 1}
    assert expunge("status") == {}, "what was withdrawn is not answered"
    later = world.live("convex", name="later", leave_out_forgotten=True)
    assert "p1" not in members(world, later), "who was deleted stays out"


def test_an_import_that_was_interrupted_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies between two transactions; afterwards everything is there once."""
    from expunge.service.connect.drop import items  # noqa: PLC0415

    monkeypatch.setattr(items, "ROWS", 2)
    monkeypatch.setattr(items, "PEOPLE", 1)
    world.live(guarantee="proved")
    feed = Feed(world.database, world.storage.pepper, TENANT)
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
    real, calls = items._ask, []

    def third_dies(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(items, "_ask", third_dies)
    with pytest.raises(KeyboardInterrupt):
        match(feed, people)
    assert world.count(FeedMatch) == world.count(DeletionRequest) == 2
    assert len(match(feed, people).requests) == 3
    assert (world.count(FeedItem), world.count(FeedMatch), world.count(DeletionRequest)) == (5, 5, 5)


def test_answers_equal_those_of_the_obvious_way(world: World) -> None:
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
    feed = Feed(world.database, world.storage.pepper, TENANT)
    assert store(feed, SOURCE, entries) == 600
    matched = match(feed, people)
    mark_checked(feed, matched)
    with world.database.read() as session:
        assert {each.item: each.status for each in answers(session, TENANT)} == expected
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


def test_no_identifier_and_no_hash_of_one_is_stored(world: World, expunge: Expunge, tmp_path: Path) -> None:
    """Everything that Expunge has written is searched, byte by byte."""
    model_id = world.live(guarantee="proved")
    listed = write_list(tmp_path, f"{SOURCE}_Email.csv", entry("one", "p1"), entry("none", "stranger"))
    people = write_people(tmp_path, "p1", "p2")
    expunge("import", str(listed), "--identities", str(people))
    world.work(model_id)
    expunge("export", str(tmp_path / "out"))
    hashes = [entry("x", person).hash for person in ("p1", "p2", "stranger")]
    needles = [mail_of(person).encode() for person in ("p1", "p2", "stranger")]
    for found in hashes:
        needles += [found, found.hex().encode(), base64.b64encode(found)]
    files = [each for each in world.settings.home.rglob("*") if each.is_file()] + list(tmp_path.glob("expunge.db*"))
    content = b"".join(each.read_bytes() for each in files)
    assert len(content) > 100_000, "there is something to search"
    assert [needle for needle in needles if needle in content] == []


@pytest.mark.parametrize("with_log", [True, False])
def test_a_restore_names_the_lists_that_the_backup_lacks(world: World, snapshot: Snapshot, with_log: bool) -> None:
    """Otherwise whom they name would come back with later data."""
    world.live(guarantee="proved")
    store(Feed(world.database, world.storage.pepper, TENANT), "20261001_4821", [entry("early", "p1")])
    export(world)  # what stands under a signed head in the backup is there
    old = snapshot(world)
    store(Feed(world.database, world.storage.pepper, TENANT), SOURCE, [entry("late", "p2")])
    report = restore(old.storage, old.limits.lease_seconds, signer(old), [export(world)] if with_log else [])
    assert (report.lists_lost, report.lists_to_check) == ([SOURCE] if with_log else [], ["20261001_4821"])
    assert any("expunge drop import" in each for each in report.to_do)
