"""Claims of versions made in worlds say no more than the walls showed, and all that the operator vouches for."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest

from expunge_workers.guarantee import statements
from tests.unlearning.accounting.test_certificate import claim
from unlearning.accounting.certificate import DIFFERED, Claim, Guarantee
from unlearning.accounting.declarations import has_plain, plain
from unlearning.accounting.world import BOUNDED, COLUMNS, HANDED, MADE, DeclaredFile, Enclosure, WorldRecord

CODE, FILES = "c" * 64, (DeclaredFile("cities.csv", "1" * 64), DeclaredFile("model/tokenizer.json", "2" * 64))
WEAKER = (Enclosure.REPORTED, Enclosure.LANDLOCK, Enclosure.NONE)
STRONG = (Guarantee.EXACT, Guarantee.PROVED)


def world(walls: Enclosure = Enclosure.NEW_ROOT, **fields: Any) -> WorldRecord:
    return WorldRecord(
        **({"walls": walls, "code": CODE, "public_files": FILES, "sources": ("table", "query")} | fields)
    )


def claim_in(record: WorldRecord, guarantee: Guarantee = Guarantee.EXACT, **changes: Any) -> Claim:
    """The claim that the functions for certify() give."""
    checked, tried, declared = statements.of_world(guarantee, record)
    lines = {"checked": checked, "tried": tried, "declared": declared}
    return claim(guarantee, **(lines | {"world": record} | changes))


def test_the_values_are_those_of_the_walls_that_stand() -> None:
    assert [Enclosure(text) for text in ("new root", "reported", "landlock alone", "none")] == [*Enclosure]
    assert Enclosure.weakest([Enclosure.NEW_ROOT, Enclosure.LANDLOCK, Enclosure.NEW_ROOT]) is Enclosure.LANDLOCK
    assert Enclosure.weakest([Enclosure.NEW_ROOT]) is Enclosure.NEW_ROOT and Enclosure.weakest([]) is Enclosure.NONE


def test_what_the_kernel_showed_and_what_is_the_operators_word_stand_apart() -> None:
    made = claim_in(world())
    assert made.checked == (
        "Made from the rows of the people who are left, by processes for which the kernel opened nothing else.",
    )
    assert made.declared == (
        f"The operator vouches that the recipe's code (sha256:{CODE}) and 2 public files (sha256:{'1' * 64}, "
        f"sha256:{'2' * 64}) were not derived from anyone's data.",
        COLUMNS,
    )
    assert not made.operators_word


@pytest.mark.parametrize("walls", WEAKER)
@pytest.mark.parametrize("guarantee", STRONG)
def test_behind_weaker_walls_it_is_the_operators_word_that_nothing_else_was_opened(
    walls: Enclosure, guarantee: Guarantee
) -> None:
    made = claim_in(world(walls), guarantee)
    assert made.checked == (HANDED,)
    assert made.declared[0].startswith("That these processes opened nothing else is the operator's word: ")
    assert made.operators_word == (guarantee is Guarantee.EXACT)


@pytest.mark.parametrize(("count", "said"), [(1, "1 source is read"), (2, "2 sources are read")])
def test_a_reader_of_the_operators_own_is_declared(count: int, said: str) -> None:
    made = claim_in(world(own_readers=count))
    assert made.operators_word and made.checked == (MADE,)
    assert made.declared[0] == (
        f"{said} by the operator's own program before rows are left out. That it mixes no people is the operator's "
        "word."
    )


def test_what_proved_has_of_a_world_is_the_samples_of_its_bound() -> None:
    assert claim_in(world(), Guarantee.PROVED).checked == (BOUNDED,)
    assert not any("Made from" in line for line in claim_in(world(), Guarantee.PROVED).checked)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_no_guarantee_has_more_checked_than_it_may(guarantee: Guarantee) -> None:
    for walls, readers in itertools.product(Enclosure, (0, 1)):
        record = world(walls, own_readers=readers)
        checked, tried, declared = statements.of_world(guarantee, record)
        assert bool(checked) == (guarantee in STRONG) and bool(tried) == (guarantee is Guarantee.EXACT)
        assert declared == (() if guarantee is Guarantee.NONE else record.declared)
        assert claim_in(record, guarantee).world == record
    assert statements.of_world(guarantee, None) == ((), (), ())


def test_whether_the_training_repeats_is_said() -> None:
    (same,), (differed,), (untried,) = (claim_in(world(repeats=repeats)).tried for repeats in (True, False, None))
    assert same == "Two worlds that were handed the same rows made the same bytes."
    assert differed.startswith(DIFFERED) and untried.startswith("Not tried: ")
    for repeats in (True, False, None):
        assert claim_in(world(repeats=repeats), deterministic=True).deterministic == (repeats is True)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_it_survives_json_and_a_claim_without_one_has_no_such_field(guarantee: Guarantee) -> None:
    for walls, readers, repeats in itertools.product(Enclosure, (0, 1), (True, False, None)):
        made = claim_in(world(walls, own_readers=readers, repeats=repeats), guarantee)
        assert Claim.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert "world" not in claim(guarantee).to_json()
    assert Claim.from_json(claim(guarantee).to_json()).world is None


TOO_MUCH: list[tuple[WorldRecord, dict[str, Any], str]] = [
    (world(Enclosure.LANDLOCK), {"operators_word": False}, "operators_word is false"),
    (world(Enclosure.NONE), {"operators_word": False}, "operators_word is false"),
    (world(own_readers=1), {"operators_word": False}, "operators_word is false"),
    (world(repeats=False), {"deterministic": True}, "repeats is False"),
    (world(), {"deterministic": True}, "repeats is None"),
    (world(Enclosure.LANDLOCK), {"checked": (MADE,)}, "kernel opened nothing else"),
    (world(Enclosure.NONE), {"tried": (BOUNDED,)}, "kernel opened nothing else"),
    (world(), {"declared": ()}, "leaves out what its world takes from the operator's word"),
    (world(), {"declared": (COLUMNS,)}, CODE),
    (world(Enclosure.NONE), {"declared": world().declared}, "opened nothing else is the operator's word"),
    (world(own_readers=1), {"declared": world().declared}, "mixes no people"),
    (world(), {"declared": world(public_files=()).declared}, "2 public files"),
]


@pytest.mark.parametrize(("record", "change", "message"), TOO_MUCH)
def test_a_claim_that_says_more_than_its_walls_is_refused(
    record: WorldRecord, change: dict[str, Any], message: str
) -> None:
    made = claim_in(record)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(made, **change)
    with pytest.raises(ValueError, match=message):
        Claim.from_json(
            made.to_json() | {name: [*value] if isinstance(value, tuple) else value for name, value in change.items()}
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"walls": "shown"}, "'shown' is not a valid"),
        ({"code": "c" * 63}, "digest of the code"),
        ({"code": None}, "digest of the code"),
        ({"public_files": [{"name": "a", "sha256": "A" * 64}]}, "digest of the public file 'a'"),
        ({"public_files": [{"name": "", "sha256": "a" * 64}]}, "no name"),
        ({"public_files": [{"name": "a", "sha256": "a" * 64}] * 2}, "named twice"),
        ({"own_readers": 3}, "own_readers is 3"),
        ({"own_readers": -1}, "own_readers is -1"),
        ({"own_readers": True}, "own_readers is True"),
        ({"repeats": 1}, "repeats is 1"),
        ({"sources": [""]}, "kind of each"),
        ({"certified": True}, "fields must be"),
    ],
)
def test_a_world_that_is_none_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorldRecord.from_json(world().to_json() | change)
    with pytest.raises(ValueError, match=message):
        Claim.from_json(claim_in(world()).to_json() | {"world": world().to_json() | change})


def test_every_line_that_a_world_declares_has_a_plain_sentence() -> None:
    many = tuple(DeclaredFile(f"f{at}", "0" * 64) for at in range(1_200))
    for walls, readers, files in itertools.product(Enclosure, (0, 2), ((), FILES[:1], FILES, many)):
        lines = world(walls, own_readers=readers, public_files=files).declared
        assert all(has_plain(line) for line in lines)
        said = " ".join(plain(lines, (), "your data"))
        assert "operator" not in said.replace("operator's own program", "") and "sha256" not in said
        count = {0: "program was not", 1: "and 1 further file were", 2: "and 2 further files were"}
        assert count.get(len(files), "and 1,200 further files were") in said
        assert len(" ".join(lines)) < 900
