"""The holdout by a hash of the person: nobody changes sides when the data grow, and both sides are what they say."""

from __future__ import annotations

import hashlib

import pytest
import torch

import unlearning as ul


def samples(count: int, shift: int = 0) -> ul.Samples:
    """Return two samples for each of ``count`` people, whose rows begin at another place with ``shift``."""
    people = [f"p{index}" for index in range(count) for _ in range(2)]
    people = people[shift:] + people[:shift]
    ids = [f"{person}-{number}" for number, person in enumerate(people)]
    inputs = torch.tensor([[float(person[1:])] for person in people])
    return ul.Samples(ids, people, inputs, torch.zeros(len(people), dtype=torch.long))


def test_about_the_share_of_the_people_is_held_out() -> None:
    out = sum(ul.held_out(f"p{index}", 0.2) for index in range(10_000))
    assert 1_850 < out < 2_150  # 3.75 standard deviations
    assert not any(ul.held_out(f"p{index}", 0.0) for index in range(100))
    assert all(ul.held_out(f"p{index}", 1.0) for index in range(100))


def test_the_rule_is_the_documented_hash() -> None:
    for index in range(50):
        name = f"p{index}"
        place = int(hashlib.sha256(f"expunge holdout {name}".encode()).hexdigest()[:16], 16) / 16**16
        assert ul.held_out(name, 0.3) == (place < 0.3)


def test_who_is_held_out_stays_held_out_at_a_greater_share() -> None:
    names = [f"p{index}" for index in range(500)]
    assert {n for n in names if ul.held_out(n, 0.1)} < {n for n in names if ul.held_out(n, 0.3)}


def test_a_sample_of_several_people_is_held_out_only_if_all_are() -> None:
    names = [f"p{index}" for index in range(50)]
    aside, trained = [n for n in names if ul.held_out(n)], [n for n in names if not ul.held_out(n)]
    assert ul.held_out(aside[:2])
    assert not ul.held_out([aside[0], trained[0]])
    assert not ul.held_out(trained[:2])


def test_nobody_changes_sides_when_the_table_grows_or_is_sorted_otherwise() -> None:
    before, _, held_before = samples(60).split()
    after, _, held_after = samples(90, shift=31).split()
    assert set(before.people) <= set(after.people)
    assert set(held_before) <= set(held_after)
    assert not set(after.people) & set(held_after)


def test_a_split_keeps_every_row_with_its_person() -> None:
    everyone = samples(60)
    kept, (inputs, targets), held = everyone.split(0.4)
    assert len(kept) + len(held) == len(everyone)
    assert [f"p{int(x)}" for x in inputs[:, 0]] == [names[0] for names in held]
    assert len(targets) == len(held)
    assert [f"p{int(x)}" for x in kept.tensors()[0][:, 0]] == [names[0] for names in kept.people]
    assert [identity.split("-")[0] for identity in kept.ids] == [names[0] for names in kept.people]


def test_a_side_without_anybody_is_refused() -> None:
    with pytest.raises(ul.RecipeError, match="no person is left for the holdout"):
        samples(4).split(0.0)
    with pytest.raises(ul.RecipeError, match="no person is left for the training"):
        samples(4).split(1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        ul.held_out("p", 2.0)
