"""Recollection with vectors for a chosen part of the people: the same vectors, and nobody else's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.unlearning.methods.test_recollection import LAX, forget_set, prepared, release
from tests.unlearning.recipes import network, softmax
from unlearning.methods.recollection import Recollection
from unlearning.recipe import Recipe
from unlearning.types import Refused, Vectors, VectorsMissing

CHOSEN = ("p1", "p4", "p5")


@pytest.mark.parametrize("written", [network(), softmax()], ids=["trajectory", "converged"])
def test_the_chosen_have_the_vectors_that_they_have_among_everybody(written: Recipe) -> None:
    *_, everyone = prepared(written)
    *_, part = prepared(replace(written, vectors_for=CHOSEN))
    assert set(part.vectors) == set(CHOSEN)
    for person in CHOSEN:
        assert torch.allclose(part.vectors[person], everyone.vectors[person], rtol=1e-9, atol=1e-12)


def test_someone_without_a_vector_is_refused_and_nothing_changes() -> None:
    problem, examples, _, state = prepared(replace(softmax(), vectors_for=CHOSEN))
    assert not torch.equal(release(problem, state, examples, "p1").weights, state.weights)
    forget = replace(forget_set(examples, "p1", "p2"), vectors=Vectors(state.vectors))
    with pytest.raises(VectorsMissing, match="1 of 2 people have no vector"):
        LAX.forget(problem, state, forget, None, torch.Generator())


def test_whoever_shares_a_sample_with_a_chosen_person_shares_the_vector() -> None:
    problem, examples, _, _ = prepared(softmax())
    pairs = examples.people.map(lambda person: "p1+p2" if person in ("p1", "p2") else person)
    subjects = pairs.map(lambda name: tuple(name.split("+")))
    joint = replace(examples, people=pairs, subjects=subjects)
    problem.recipe = replace(problem.recipe, vectors_for=["p2", "p9"])
    assert LAX.holders(problem, joint) == ["p1+p2", "p9"]


def test_fewer_than_two_chosen_people_are_refused() -> None:
    for chosen in ([], ["p1"], ["p1", "nobody"]):
        with pytest.raises(Refused, match="fewer than two people"):
            prepared(replace(softmax(), vectors_for=chosen))


def test_a_repair_carries_the_vectors_of_the_chosen() -> None:
    repairing = Recollection(repair_epochs=1)
    problem, examples, _, state = prepared(replace(network(), vectors_for=CHOSEN), repairing)
    forget = replace(forget_set(examples, "p1"), vectors=Vectors(state.vectors))
    done = repairing.forget(problem, state, forget, examples.without(torch.tensor(forget.positions)), torch.Generator())
    assert set(done.state.vectors) == {"p4", "p5"}
