"""Mixed columns as one row of bytes: what goes in comes out, from every frame, and what does not fit is named."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
from unlearning.methods.retrain import Retrain
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet

CITIES = ("Oslo", "Rome", "Bonn")
PACK = ul.Pack(
    age=ul.Field("float64"),
    bought=ul.Field("int32", 4, ragged=True),
    city=ul.Field("int16", values=CITIES),
    been=ul.Field("int8", 3, ragged=True, values=CITIES),
    at=ul.Field("float32", 2),
    new=ul.Field("bool"),
    number=ul.Field("int64"),
)
BEEN = ["Oslo", "Lima", "Rome"]
ROWS: list[dict[str, Any]] = [
    {"age": 31.5, "bought": [7, 2**30], "city": "Rome", "been": ["Bonn"], "at": [1.5, 2.5], "new": True},
    {"age": None, "bought": [], "city": None, "been": [], "at": [0.0, -1.0], "new": False},
    {"age": 1e-300, "bought": [1, 2, 3, 4], "city": "Lima", "been": BEEN, "at": [9.0, 8.0], "new": True},
]
for _row, _number in zip(ROWS, (2**62 + 1, -5, 0), strict=True):
    _row["number"] = _number


def frames() -> dict[str, Any]:
    table = pa.Table.from_pylist(ROWS)
    found: dict[str, Any] = {"arrow": table, "pandas": pd.DataFrame(ROWS)}
    found["columns"] = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    if find_spec("polars") is not None:
        found["polars"] = import_module("polars").DataFrame(ROWS)
    return found


@pytest.mark.parametrize("frame", frames().values(), ids=frames())
def test_what_goes_in_comes_out(frame: Any) -> None:
    rows = PACK.encode(frame)
    assert (rows.dtype, rows.shape) == (torch.uint8, (3, 8 + 16 + 4 + 2 + 3 + 4 + 8 + 1 + 8))
    for found in (PACK.decode(rows), PACK.decode(torch.cat([rows, rows])[1:4].flip(0)[[2, 1, 0]][[2, 0, 1]])):
        order = [0, 1, 2]
        assert torch.allclose(found["age"][order], torch.tensor([31.5, torch.nan, 1e-300]).double(), equal_nan=True)
        assert found["bought"][order].tolist() == [[7, 2**30, 0, 0], [0] * 4, [1, 2, 3, 4]]
        assert found["bought_length"][order].tolist() == [2, 0, 4]
        assert found["city"][order].tolist() == [1, -1, -1]
        assert found["been"][order].tolist() == [[2, 0, 0], [0, 0, 0], [0, -1, 1]]
        assert found["been_length"].tolist() == [1, 0, 3]
        assert torch.equal(found["at"][order], torch.tensor([[1.5, 2.5], [0.0, -1.0], [9.0, 8.0]]))
        assert found["new"].tolist() == [True, False, True]
        assert found["number"].tolist() == [2**62 + 1, -5, 0]
    assert [found[name].dtype for name in ("age", "bought", "city", "been", "at", "new")] == [
        torch.float64, torch.int32, torch.int16, torch.int8, torch.float32, torch.bool,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bought": [1, 2, 3, 4, 5]}, "Row 1 of 'bought' has 5 values; the field has 4"),
        ({"at": [1.0]}, "Row 1 of 'at' has 1 values"),
        ({"number": None}, "1 values of 'number' are missing"),
        ({"age": "old"}, "'age' holds string, no numbers|is no table"),
        ({"number": 0.5}, "'number' does not fit into int64"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    rows = [ROWS[0] | {"number": 3}, ROWS[2] | {"number": 4} | change]
    if "age" in change:
        rows = [row | change for row in rows]
    with pytest.raises(ul.RecipeError, match=message):
        PACK.encode({name: [row[name] for row in rows] for name in rows[0]})


def test_wrong_fields_and_rows_are_refused() -> None:
    with pytest.raises(ul.RecipeError, match="'float13'"):
        ul.Field("float13")
    with pytest.raises(ul.RecipeError, match="300 categories"):
        ul.Field("int8", values=tuple(range(300)))
    with pytest.raises(ul.RecipeError, match="one of them twice"):
        ul.Field("int8", values=("a", "a"))
    with pytest.raises(ul.RecipeError, match="cannot be packed"):
        ul.Pack(a=ul.Field("int8", 2, ragged=True), a_length=ul.Field("int8"))
    with pytest.raises(ul.RecipeError, match="lacks the columns number"):
        PACK.encode({name: [ROWS[0][name]] for name in ROWS[0] if name != "number"})
    with pytest.raises(ul.RecipeError, match="the pack has 54 bytes"):
        PACK.decode(torch.zeros(2, 53, dtype=torch.uint8))


@pytest.mark.parametrize("kind", ["arrow", "pandas", "parquet", "polars"])
def test_a_frame_of_any_kind_is_packed_alike(kind: str, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(
        [
            row | {"id": f"s{place}", "who": f"p{place % 2}", "y": place, "w": 1.0 + place}
            for place, row in enumerate(ROWS)
        ]
    )
    pq.write_table(table, tmp_path / "t.parquet")
    frame = {"arrow": table, "pandas": table.to_pandas(), "parquet": tmp_path / "t.parquet"}.get(kind)
    if kind == "polars":
        polars = pytest.importorskip("polars", reason="unverified here: polars is not installed")
        frame = polars.read_parquet(tmp_path / "t.parquet")
    assert torch.equal(PACK.encode(frame), PACK.encode(table))


@pytest.mark.parametrize("inputs", [{"a": torch.ones(2)}, np.ones((2, 1)), [[1], [2, 3]], pd.DataFrame({"a": [1, 2]})])
def test_inputs_that_are_not_one_tensor_are_refused_in_plain_words(inputs: Any) -> None:
    with pytest.raises(ul.RecipeError, match=r"inputs must be one tensor: use ul\.Pack"):
        ul.Samples(["a", "b"], ["p", "q"], inputs, torch.zeros(2))
    with pytest.raises(ul.RecipeError, match=r"inputs must be one tensor: use ul\.Pack"):
        samples = ul.Samples(["a", "b"], ["p", "q"], torch.ones(2, 1), torch.zeros(2))
        ul.Recipe(lambda: nn.Linear(1, 1), samples, (inputs, torch.zeros(2)), "squared_error", ul.Training(epochs=1))


class Mixed(nn.Module):
    """A mean of embedded items, a city and an age that may be missing."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.cities, self.last = nn.Embedding(50, 3), nn.Embedding(4, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        row = PACK.decode(x)
        there = torch.arange(4) < row["bought_length"].unsqueeze(1)
        bought = (self.items(row["bought"].long()) * there.unsqueeze(2)).sum(dim=1)
        return self.last(
            torch.cat(
                [bought, self.cities(row["city"].long() + 1), row["age"].nan_to_num(40.0).unsqueeze(1).to(bought) / 40],
                1,
            )
        )


def test_a_deletion_of_a_mixed_model_equals_a_training_without_the_person() -> None:
    draw = np.random.default_rng(0)
    frame = {
        "age": [None if place % 5 == 0 else float(draw.normal(40, 9)) for place in range(60)],
        "bought": [draw.integers(0, 50, size=place % 5).tolist() for place in range(60)],
        "city": [(*CITIES, None)[place % 4] for place in range(60)],
        "been": [["Rome"]] * 60,
        "at": [[0.0, 1.0]] * 60,
        "new": [True] * 60,
        "number": [*range(60)],
    }
    x, y = PACK.encode(frame), torch.arange(60) % 2
    samples = ul.Samples([f"s{k}" for k in range(60)], [f"p{k // 3}" for k in range(60)], x, y)
    training = ul.Training(epochs=3, learning_rate=0.05, optimizer=ul.AdamW())
    recipe = ul.Recipe(Mixed, samples, (x[:10], y[:10]), "cross_entropy", training)
    problem, examples = Problem(recipe), samples.examples()
    gone = examples.positions[examples.people.where(lambda person: person == "p4")]
    left = ForgetSet(frozenset({"p4"}), tuple(gone.tolist()))
    method = Retrain()
    state = method.prepare(problem, examples, train(problem, examples))
    found = method.forget(problem, state, left, examples.without(gone), torch.Generator()).state.weights
    cold = train(problem, examples.without(gone)).weights
    assert torch.equal(found, cold) and not torch.equal(found, state.weights)


def test_categories_that_were_taken_from_the_people_are_another_part() -> None:
    """A certificate lists their digest: a vocabulary that is fitted on all rows has another one without a person."""
    one, other = (ul.Pack(city=ul.Field("int8", values=known)) for known in (CITIES, CITIES[:2]))
    assert not torch.equal(one.categories, other.categories)
    assert not hasattr(ul.Pack(age=ul.Field("float32")), "categories")
