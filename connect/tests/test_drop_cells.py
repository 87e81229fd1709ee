"""Cells of a file of people are read strictly: a value becomes its own hash, or it is refused; never a stranger's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from connect.tests.test_drop import SOURCE, answered, write_list
from expunge_client.cli.main import app
from expunge_connect.drop.cells import _AMERICAN, AMERICAN, Malformed, parsed_phone, read
from expunge_connect.drop.identifiers import hash_of
from expunge_connect.drop.lists import ListEntry, identities
from expunge_service.infra.tables import DeletionRequest
from tests.workers.worlds import World

Drop = Callable[..., dict[str, Any]]

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda ten: ten,
    "hyphens": lambda ten: f"{ten[:3]}-{ten[3:6]}-{ten[6:]}",
    "brackets": lambda ten: f"({ten[:3]}) {ten[3:6]}-{ten[6:]}",
    "points": lambda ten: f"{ten[:3]}.{ten[3:6]}.{ten[6:]}",
    "blanks": lambda ten: f" {ten[:3]} {ten[3:6]} {ten[6:]} ",
    "country": lambda ten: f"+1{ten}",
    "country and blanks": lambda ten: f"+1 {ten[:3]} {ten[3:6]} {ten[6:]}",
    "one before": lambda ten: f"1{ten}",
    "copied contact": lambda ten: f"\u202a+1 ({ten[:3]}) {ten[3:6]}\u2011{ten[6:]}\u202c",
    "address": lambda ten: f"tel:+1-{ten[:3]}-{ten[3:6]}-{ten[6:]}",
    "float": lambda ten: f"{ten}.0",
    "two decimals": lambda ten: f"{ten}.00",
    "exponent": lambda ten: f"{ten[0]}.{ten[1:]}E+09",
    "short exponent": lambda ten: f"{ten[0]}.{ten[1:5]}E+09",
    "extension": lambda ten: f"{ten} x12",
    "extension by a sign": lambda ten: f"{ten}#12",
    "two numbers": lambda ten: f"{ten}, {int(ten) + 1}",
    "two lines": lambda ten: f"{ten}\n{int(ten) + 1}",
    "a digit more": lambda ten: f"{ten}0",
    "without area": lambda ten: ten[3:],
}
READ = {name for name in SPELLINGS if list(SPELLINGS).index(name) < 10}


def numbers(count: int, seed: int = 20261127) -> list[str]:
    dice = Random(seed)
    return [f"{dice.randrange(200, 1000)}{dice.randrange(200, 1000)}{dice.randrange(10_000):04d}" for _ in range(count)]


def test_of_four_thousand_spelled_numbers_none_is_another_persons() -> None:
    """Each of 20 spellings of 200 numbers gives the number's own hash or is refused; the ten honest ones are read."""
    right = dict.fromkeys(SPELLINGS, 0)
    for ten in numbers(200):
        for name, spelling in SPELLINGS.items():
            try:
                cell = read("phone", spelling(ten))
            except Malformed:
                continue
            assert hash_of("Phone", {"phone": cell}) == hash_of("Phone", {"phone": ten}), name
            right[name] += 1
    assert {name for name, count in right.items() if count} == READ
    assert all(right[name] == 200 for name in READ)


def test_a_cell_that_is_read_without_the_library_is_read_so_by_it() -> None:
    """The fast way for American numbers equals the slow one, which parses."""
    dice, seen = Random(7), 0
    for ten in numbers(500):
        text = dice.choice(list(SPELLINGS.values()))(ten).strip()
        if _AMERICAN.fullmatch(text):
            seen += 1
            assert parsed_phone(text, AMERICAN) == text
    assert seen > 100


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("phone", "+84(90)123 4567"),
        ("phone", "+1(415)555-9317"),
        ("email", " Anna.Smith+news@Domain.com "),
        ("zip", "2134"),
        ("zip", "91790-3771"),
        ("zip", "M1B 1A1"),
        ("birth_date", "July 4, 1985"),
        ("birth_date", "1985-07-04T00:00:00"),
        ("last_name", "Null"),
        ("maid", "a3f1c2d4-5678-90ab-cdef-1234567890ab"),
    ],
)
def test_a_well_formed_cell_is_handed_to_the_rule(column: str, text: str) -> None:
    assert read(column, text) == (text.strip() if column in ("email", "phone") else text)
    assert read(column, "  ") == ""


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("zip", "2134.0"),
        ("zip", "021341234"),
        ("zip", "nan"),
        ("email", "Anna <a@b.org>"),
        ("email", "a@b.org, c@d.org"),
        ("email", "a@b.org c@d.org"),
        ("email", "\u202aa@b.org"),
        ("email", "a@b"),
        ("birth_date", "31234"),
        ("birth_date", "1985074"),
        ("maid", "a3f1"),
        ("vin", "123"),
        ("first_name", "#N/A"),
    ],
)
def test_a_cell_that_holds_something_else_is_malformed_and_not_repeated(column: str, text: str) -> None:
    with pytest.raises(Malformed) as malformed:
        read(column, text)
    assert text not in str(malformed.value)


def test_numbers_of_another_country_are_read_by_its_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("person,phone\np1,020 7946 0958\n")
    with pytest.raises(ValueError, match="column phone, line 2"), identities(file) as people:
        list(people)
    monkeypatch.setenv("EXPUNGE_DROP_REGION", "gb")
    with identities(file) as people:
        assert [row["phone"] for row in people] == ["020 7946 0958"]


def phone_entry(item: str, number: str) -> ListEntry:
    digest = hash_of("Phone", {"phone": number})
    assert digest is not None
    return ListEntry(item.ljust(12, "0"), digest, "Phone")


def write_phones(folder: Path, phones: dict[str, str]) -> Path:
    file = folder / "people.csv"
    file.write_text("person,phone\n" + "".join(f"{person},{number}\n" for person, number in phones.items()))
    return file


def test_a_float_column_deletes_no_stranger_and_answers_nothing_false(world: World, drop: Drop, tmp_path: Path) -> None:
    """pandas wrote 5305551234.0 for p1; by the rule its last ten digits are 3055512340, which the list names."""
    model_id = world.live(guarantee="proved")
    named = [phone_entry("stranger", "3055512340"), phone_entry("p1", "5305551234"), phone_entry("p2", "4155559317")]
    listed = write_list(tmp_path, f"{SOURCE}_Phone.csv", *named)
    people = write_phones(tmp_path, {"p1": "5305551234.0", "p2": "4155559317"})
    drop("import", str(listed))

    refused = CliRunner().invoke(app, ["drop", "match", "--identities", str(people)])
    assert refused.exit_code == 1
    assert "column phone, line 2" in str(refused.exception) and "5305551234" not in str(refused.exception)
    assert world.count(DeletionRequest) == 0 and drop("status") == {"waiting": 3, "to_report": 0}

    facts = drop("match", "--identities", str(people), "--skip-malformed")
    assert (facts["malformed"], facts["requests"], facts["hashed"]) == ({"phone": 1}, 1, {"Phone": 1})
    world.work(model_id)
    drop("export", str(tmp_path / "out"))
    assert answered(tmp_path / "out", f"{SOURCE}_Phone.csv") == {"p2": 3}, "of the two others nothing is known"

    write_phones(tmp_path, {"p1": "5305551234", "p2": "4155559317"})
    assert drop("match", "--identities", str(people))["requests"] == 1
    world.work(model_id)
    drop("export", str(tmp_path / "mended"))
    assert answered(tmp_path / "mended", f"{SOURCE}_Phone.csv") == {"p1": 3, "stranger": 5}


def test_not_found_is_answered_all_the_same_where_that_is_asked_for(world: World, drop: Drop, tmp_path: Path) -> None:
    world.live(guarantee="proved")
    drop("import", str(write_list(tmp_path, f"{SOURCE}_Phone.csv", phone_entry("stranger", "3055512340"))))
    people = write_phones(tmp_path, {"p1": "5305551234.0", "p2": "4155559317"})
    drop("match", "--identities", str(people), "--skip-malformed", "--answer-not-found")
    drop("export", str(tmp_path / "out"))
    assert answered(tmp_path / "out", f"{SOURCE}_Phone.csv") == {"stranger": 5}


def test_a_column_of_damaged_ids_is_refused_and_suspicious_ones_are_named(drop: Drop, tmp_path: Path) -> None:
    drop("import", str(write_list(tmp_path, f"{SOURCE}_Phone.csv", phone_entry("one", "4155559317"))))
    file = tmp_path / "people.csv"
    file.write_text("person,phone\n17.0,4155559317\n1.8E+01,4155559318\n")
    done = CliRunner().invoke(app, ["drop", "match", "--identities", str(file)])
    assert done.exit_code == 1 and "line 2: whole numbers with decimals" in str(done.exception)
    file.write_text("person,phone\n" + "".join(f"{number:06d},415555{number:04d}\n" for number in range(30)) + "17,\n")
    with identities(file) as people:
        list(people)
    assert len(people.warnings) == 2 and all("line 32" in warning for warning in people.warnings)
