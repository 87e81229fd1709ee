"""A recipe that is called in this process: on whom it is trained, and of whom its holdout is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unlearning as ul
from unlearning.rows import RunParameter, call_recipe, open_rows, set_apart
from unlearning.types import RecipeError

PEOPLE = 30
SOURCE = ul.table("people.csv", person="person", aside=0.3)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lines = "".join(f"p{row % PEOPLE},{row * 1.5},{row % 2}\n" for row in range(3 * PEOPLE))
    (tmp_path / "people.csv").write_text(f"person,x,ill\n{lines}")
    return tmp_path


def linear(rows: ul.Rows, holdout: Any) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(1, 2),
        samples=rows.samples(rows.tensor("x").reshape(-1, 1).float(), rows["ill"], at=rows["__row"]),
        holdout=holdout,
        loss="cross_entropy",
        training=ul.Training(epochs=1),
    )


def pair(apart: ul.Rows) -> tuple[torch.Tensor, torch.Tensor]:
    return apart.tensor("x").reshape(-1, 1).float(), apart.tensor("ill")


def recipe(rows: ul.Rows = SOURCE) -> ul.Recipe:
    return linear(rows, pair)


def trained_on(made: ul.Recipe) -> set[str]:
    return {person for names in made.samples.people for person in names}


@pytest.mark.parametrize("salt", [b"", b"secret"])
def test_the_holdout_is_made_of_those_kept_apart(root: Path, salt: bytes) -> None:
    made = call_recipe(recipe, lambda _: root, salt=salt)
    rows, apart = set_apart(open_rows(SOURCE, root, salt=salt), 0.3)
    assert torch.equal(made.holdout_tensors[0], pair(apart)[0]) and torch.equal(made.holdout_tensors[1], pair(apart)[1])
    assert len(made.samples) == len(rows) and 0 < len(apart) < 3 * PEOPLE


def test_the_salt_decides_who_is_kept_apart(root: Path) -> None:
    one, other = (trained_on(call_recipe(recipe, lambda _: root, salt=salt)) for salt in (b"", b"secret"))
    assert one != other


def test_who_is_gone_is_on_neither_side(root: Path) -> None:
    before = call_recipe(recipe, lambda _: root)
    person = min(trained_on(before))
    other = min({f"p{number}" for number in range(PEOPLE)} - trained_on(before))
    after = call_recipe(recipe, lambda _: root, is_gone={person, other}.__contains__)
    assert trained_on(after) == trained_on(before) - {person}
    assert len(after.holdout_tensors[0]) == len(before.holdout_tensors[0]) - 3


def test_two_sources_are_given_by_name(root: Path) -> None:
    def both(first: ul.Rows = SOURCE, second: ul.Rows = SOURCE, run: ul.TrainingRun = ul.run()) -> ul.Recipe:
        assert run.start is None and not isinstance(run, RunParameter)
        return linear(first, lambda first, second: tuple(map(torch.cat, zip(pair(first), pair(second), strict=True))))

    one, two = (call_recipe(function, lambda _: root) for function in (recipe, both))
    assert len(two.holdout_tensors[0]) == 2 * len(one.holdout_tensors[0])


def test_files_and_tensors_are_returned_as_they_are(root: Path) -> None:
    def published(rows: ul.Rows = SOURCE) -> ul.Published:
        return ul.Published({"model.json": f'{{"rows": {len(rows)}}}'})

    def given(rows: ul.Rows = SOURCE) -> ul.Recipe:
        return linear(rows, pair(rows))

    count = len(call_recipe(given, lambda _: root).samples)
    assert call_recipe(published, lambda _: root).files == {"model.json": f'{{"rows": {count}}}'.encode()}


def test_a_holdout_of_nobody_is_refused(root: Path) -> None:
    def alone(rows: ul.Rows = ul.table("people.csv", person="person")) -> ul.Recipe:
        return linear(rows, pair)

    with pytest.raises(RecipeError, match="no source keeps any"):
        call_recipe(alone, lambda _: root)
