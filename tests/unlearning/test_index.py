"""Rows by rank among the people that a training was handed: a table whose shape follows nobody."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Examples, ForgetSet, Learned, State

KEY = b"sixteen bytes or more"
PEOPLE = [f"person-{place}" for place in range(24)]
NUMBERS = dict(zip(PEOPLE, ul.person_numbers(PEOPLE, KEY).tolist(), strict=True))
WRITTEN = [PEOPLE[(5 * place) % 24] for place in range(96)]
ITEMS = torch.arange(96) % 6
RATINGS = torch.tensor([float(hash_ % 7) for hash_ in (NUMBERS[name] for name in WRITTEN)]) + ITEMS


class Rated(nn.Module):
    def __init__(self, room: int = 40) -> None:
        super().__init__()
        self.index = ul.Index(room)
        self.people, self.items = nn.Embedding(self.index.rows, 2), nn.Embedding(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.people(self.index(x[:, 0])) * self.items(x[:, 1])).sum(dim=1, keepdim=True)


def fit(run: ul.Run) -> None:
    run.index(run.inputs[:, 0])
    optimizer = torch.optim.Adam(run.model.parameters(), lr=0.1)
    for _ in range(max(1, round(4 * run.share))):
        optimizer.zero_grad()
        (run.model(run.inputs) - run.targets).square().mean().backward()
        optimizer.step()


def recipe(room: int = 40, train: Any = fit) -> ul.Recipe:
    x = torch.stack([torch.tensor([NUMBERS[name] for name in WRITTEN]), ITEMS], dim=1)
    samples = ul.Samples([f"s{place}" for place in range(96)], WRITTEN, x, RATINGS.unsqueeze(1))
    return ul.Recipe(lambda: Rated(room), samples, (x[:9], RATINGS[:9].unsqueeze(1)), "squared_error", train=train)


def prepared(method: Method, written: ul.Recipe, examples: Examples) -> tuple[Problem, State]:
    problem = Problem(method.recipe(written))
    learned = Learned(problem.initial()) if method.trains else train(problem, examples)
    return problem, method.prepare(problem, examples, learned)


@pytest.mark.parametrize("method", [Retrain(), Late(), Shards(shards=3, slices=1)], ids=lambda each: each.name)
def test_a_deletion_equals_a_training_without_the_person_who_is_nowhere_in_the_file(method: Method) -> None:
    everyone = recipe().samples.examples()
    problem, state = prepared(method, recipe(), everyone)
    for person in (PEOPLE[0], PEOPLE[7], PEOPLE[23]):
        gone = everyone.positions[everyone.people.where(lambda name, person=person: name == person)]
        forget, kept = ForgetSet(frozenset({person}), tuple(gone.tolist())), everyone.without(gone)
        left = method.forget(problem, state, forget, kept, torch.Generator()).state.weights
        assert torch.equal(left, prepared(method, recipe(), kept)[1].weights)
        tables = [value for name, value in problem.tensors(left).items() if name.endswith("index.people")]
        before = [value for name, value in problem.tensors(state.weights).items() if name.endswith("index.people")]
        theirs = torch.tensor([NUMBERS[person] // (2 ** (16 * place)) % 2**16 for place in range(4)])
        assert any((table == theirs).all(dim=1).any() for table in before)
        assert not any((table == theirs).all(dim=1).any() for table in tables)


def test_rows_follow_the_rank_and_those_of_earlier_phases_stay() -> None:
    index = ul.Index(6)
    index.add(torch.tensor([900, 2**62, 5, 900]))
    assert index(torch.tensor([5, 900, 2**62, 7, 0])).tolist() == [0, 1, 2, 6, 6]
    index.add(torch.tensor([7, 2**62, 3]))
    assert index.numbers().tolist() == [5, 900, 2**62, 3, 7, 0]
    assert index(torch.tensor([[3], [7]])).tolist() == [[3], [4]]
    with pytest.raises(ul.RecipeError, match="7 people need a row; the index has room for 6"):
        index.add(torch.tensor([20, 21]))
    with pytest.raises(ul.RecipeError, match="below 1"):
        index.add(torch.tensor([0]))


def test_the_table_survives_weights_of_32_bits() -> None:
    problem = Problem(recipe())
    learned = train(problem, recipe().samples.examples())
    assert learned.weights.dtype == torch.float32
    model = Rated()
    model.load_state_dict(problem.tensors(learned.weights))
    assert sorted(NUMBERS.values()) == [each for each in model.index.numbers().tolist() if each]
    x = recipe().samples.inputs
    assert torch.equal(model(x), problem.outputs(learned.weights, x))  # type: ignore[arg-type]
    stranger = torch.tensor([[int(ul.person_numbers(["stranger"], KEY)), 0]])
    assert torch.equal(model(stranger), (model.people.weight[-1] * model.items.weight[0]).sum().reshape(1, 1))


def test_numbers_are_keyed_and_do_not_name_the_person() -> None:
    assert ul.person_numbers(["a", "b", "a"], KEY).tolist() == ul.person_numbers(["a", "b", "a"], KEY).tolist()
    one, other, again = ul.person_numbers(["a", "b", "a"], KEY).tolist()
    assert one == again != other and one != int(ul.person_numbers(["a"], KEY + b"!"))
    with pytest.raises(ul.RecipeError, match="5 bytes"):
        ul.person_numbers(["a"], b"short")


def test_a_model_without_an_index_and_a_full_one_are_refused() -> None:
    def none(run: ul.Run) -> None:
        run.model.index = nn.Identity()
        run.index(run.inputs[:, 0])

    for written, message in ((recipe(train=none), "0 parts ul.Index"), (recipe(room=23), "24 people need a row")):
        with pytest.raises(ul.RecipeError, match=message):
            train(Problem(written), written.samples.examples())
