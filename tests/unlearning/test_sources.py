"""Whatever samples are read from, they are the same samples; what does not fit into memory is read by blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn

import unlearning as ul
from tests.unlearning.recipes import draw
from unlearning import sources, types
from unlearning.methods.newton import Newton
from unlearning.model import convex
from unlearning.model.closed_form import require_agreement
from unlearning.model.objective import Objective
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import choose, left_by
from unlearning.types import Examples, Refused, Tensors

COUNT, FEATURES = 400, 6
X = draw(COUNT, FEATURES)
Y = (X[:, :3] + 0.5 * draw(COUNT, 3, seed=1)).argmax(dim=1)
IDS = [f"sample-{row}" for row in range(COUNT)]
PEOPLE = [f"person-{row % 50}" for row in range(COUNT)]
NAMES = [f"f{place}" for place in range(FEATURES)]
COLUMNS: dict[str, Any] = {"id": "id", "person": "who", "target": "y"}


class Pairs:
    """A map-style dataset."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]


def table(**changes: Any) -> pa.Table:
    numbers = {name: X[:, place].numpy() for place, name in enumerate(NAMES)}
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1).numpy()), FEATURES)
    return pa.table({"id": IDS, "who": PEOPLE, "y": Y.numpy(), "all": lists} | numbers | changes)


def from_parquet(folder: Path, features: Any) -> ul.Samples:
    """Two files, with row groups that no block fits."""
    parquet.write_table(table()[:150], folder / "first.parquet", row_group_size=37)
    parquet.write_table(table()[150:], folder / "second.parquet", row_group_size=101)
    paths = [folder / "first.parquet", folder / "second.parquet"]
    return ul.Samples.from_parquet(paths, features=features, **COLUMNS)


def from_numpy(folder: Path) -> ul.Samples:
    np.save(folder / "x.npy", X.numpy())
    np.save(folder / "y.npy", Y.numpy())
    return ul.Samples.from_numpy(folder / "x.npy", folder / "y.npy", ids=IDS, people=PEOPLE)


def from_huggingface(_: Path) -> ul.Samples:
    datasets = pytest.importorskip("datasets", reason="unverified here: Hugging Face datasets is not installed")
    whole = datasets.Dataset(table())
    turned = whole.select(range(COUNT - 1, -1, -1)).select(range(COUNT - 1, -1, -1))  # an order of its own, undone
    return ul.Samples.from_huggingface(turned, features=NAMES, **COLUMNS)


SOURCES: dict[str, Callable[[Path], ul.Samples]] = {
    "tensors": lambda _: ul.Samples(IDS, PEOPLE, X, Y),
    "parquet columns": lambda folder: from_parquet(folder, NAMES),
    "parquet lists": lambda folder: from_parquet(folder, "all"),
    "npy": from_numpy,
    "dataset": lambda _: ul.Samples.from_dataset(Pairs(), ids=IDS, people=PEOPLE, workers=0),
    "dataset by processes": lambda _: ul.Samples.from_dataset(Pairs(), ids=IDS, people=PEOPLE, workers=2),
    "huggingface": from_huggingface,
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "BLOCK_BYTES", 64 * 53)  # 53 or 60 rows


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_samples_that_the_tensors_give(name: str, tmp_path: Path) -> None:
    samples = SOURCES[name](tmp_path)
    assert samples.ids == IDS
    assert samples.people == [(person,) for person in PEOPLE]
    blocks = list(samples.blocks())
    assert len(blocks) > 5
    assert torch.equal(torch.cat([x for x, _ in blocks]), X) and torch.equal(torch.cat([y for _, y in blocks]), Y)
    inputs, targets = samples.tensors()
    assert torch.equal(inputs, X) and torch.equal(targets, Y)
    assert inputs.dtype == X.dtype and targets.dtype == Y.dtype


HEAVY = draw(COUNT, 1, seed=2)[:, 0].abs().double()


def weighted_parquet(folder: Path, column: Any = HEAVY) -> ul.Samples:
    parquet.write_table(table(w=np.asarray(column)), folder / "weighted.parquet", row_group_size=101)
    return ul.Samples.from_parquet(folder / "weighted.parquet", features=NAMES, weight="w", **COLUMNS)


def weighted_numpy(folder: Path) -> ul.Samples:
    np.save(folder / "w.npy", HEAVY.numpy())
    return ul.Samples.from_numpy(X.numpy(), Y.numpy(), ids=IDS, people=PEOPLE, weight=folder / "w.npy")


def weighted_huggingface(_: Path) -> ul.Samples:
    datasets = pytest.importorskip("datasets", reason="unverified here: Hugging Face datasets is not installed")
    whole = datasets.Dataset(table(w=HEAVY.numpy()))
    return ul.Samples.from_huggingface(whole, features=NAMES, weight="w", **COLUMNS)


WEIGHTED: dict[str, Callable[[Path], ul.Samples]] = {
    "parquet": weighted_parquet,
    "npy": weighted_numpy,
    "dataset": lambda _: ul.Samples.from_dataset(Pairs(), ids=IDS, people=PEOPLE, workers=0, weight=HEAVY),
    "huggingface": weighted_huggingface,
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_every_source_are_those_of_tensors(name: str, tmp_path: Path) -> None:
    """Also in an order of its own, and of some rows: the weight is in the target, and goes with its sample."""
    there = torch.arange(COUNT - 1, 0, -3)
    found, plain = WEIGHTED[name](tmp_path).take(there), ul.Samples(IDS, PEOPLE, X, Y, weight=HEAVY).take(there)
    assert len(list(found.blocks())) > 1
    for mine, theirs in zip(found.tensors(), plain.tensors(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_weight_of_a_file_that_is_missing_or_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ul.RecipeError, match="rows of weight hold NaN"):
        weighted_parquet(tmp_path, pa.array([None] + [1.0] * (COUNT - 1)))
    with pytest.raises(ul.RecipeError, match="the least is -1"):
        weighted_parquet(tmp_path, np.append(np.ones(COUNT - 1), -1.0))
    with pytest.raises(ul.RecipeError, match="lacks the columns heavy"):
        ul.Samples.from_parquet(tmp_path / "weighted.parquet", features=NAMES, weight="heavy", **COLUMNS)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", SOURCES)
def test_examples_of_every_source_can_be_picked_and_left_out(name: str, tmp_path: Path) -> None:
    everyone = SOURCES[name](tmp_path).examples(most=1)
    assert everyone.held == (name == "tensors")
    places = torch.tensor([7, 399, 0, 150, 149, 7])
    x, y = everyone.pick(places)
    assert torch.equal(x, X[places]) and torch.equal(y, Y[places])
    left = everyone.without(torch.arange(0, COUNT, 3))
    staying = torch.arange(COUNT)[torch.arange(COUNT) % 3 != 0]
    assert torch.equal(torch.cat([x for x, _ in left.blocks()]), X[staying])
    assert left.people == [PEOPLE[row] for row in staying.tolist()]
    assert torch.equal(left.pick(torch.tensor([1]))[0], X[2:3])
    assert (
        len(list(everyone.blocks())) == (1 if everyone.held else 8) or name.startswith("parquet") or not everyone.held
    )


def test_what_is_small_is_read_into_memory_once_and_the_rest_refuses_to_be(tmp_path: Path) -> None:
    samples = from_numpy(tmp_path)
    assert samples.examples().held
    large = samples.examples(most=1000)
    assert not large.held
    with pytest.raises(Refused, match=r"400 of the 400 samples \(0\.0 GB\) are asked for at once"):
        _ = large.inputs


def recipe(samples: ul.Samples, loss: str, outputs: int, **training: Any) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: nn.Linear(FEATURES, outputs),
        samples=samples,
        holdout=(X, Y if loss != "binary_logistic" else (Y > 0).long()),
        loss=loss,
        training=ul.Training(**{"epochs": 0, "weight_decay": 1e-2, "converge": 1e-10} | training),
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("loss", "outputs"), [("cross_entropy", 3), ("binary_logistic", 1), ("squared_error", 1), ("squared_hinge", 3)]
)
def test_newton_by_blocks_is_newton_in_memory(loss: str, outputs: int) -> None:
    targets = {"binary_logistic": (Y > 0).long(), "squared_error": X @ draw(FEATURES, 1, seed=3)}.get(loss, Y)
    samples = ul.Samples(IDS, PEOPLE, sources.NumpyRows(X.numpy(), targets.numpy()))
    written = recipe(samples, loss, outputs)
    problem, whole, blocks = Problem(written), samples.examples(), samples.examples(most=1)
    assert whole.held and not blocks.held
    require_agreement(problem.double(), blocks, torch.Generator().manual_seed(0))
    learned = [train(problem, each) for each in (whole, blocks)]
    assert torch.allclose(learned[0].weights, learned[1].weights, atol=1e-9)
    method, forget = Newton(residual=1e-12), choose(whole, 30, torch.Generator().manual_seed(0))
    found = [
        method.forget(problem, method.prepare(problem, each, one), forget, left_by(each, forget), torch.Generator())
        for each, one in zip((whole, blocks), learned, strict=True)
    ]
    assert torch.allclose(found[0].state.weights, found[1].state.weights, atol=1e-9)
    bounds = [
        convex.distance_bound(problem.double(), one.state.weights, left_by(each, forget))
        for each, one in zip((whole, blocks), found, strict=True)
    ]
    assert bounds[1] == pytest.approx(bounds[0], rel=0.2, abs=1e-9)


@pytest.mark.usefixtures("small_blocks")
def test_the_bound_of_blocks_is_that_of_all_samples_together() -> None:
    samples = ul.Samples(IDS, PEOPLE, sources.NumpyRows(X.numpy(), Y.numpy()))
    problem = Problem(recipe(samples, "cross_entropy", 3)).double()
    w = draw(problem.dimension, seed=5)
    whole, blocks = samples.examples(), samples.examples(most=1)
    assert convex.distance_bound(problem, w, blocks) == pytest.approx(
        convex.distance_bound(problem, w, whole), rel=1e-9
    )
    leaving = [torch.arange(3), torch.arange(40, 47)]
    assert convex.displacements(problem, w, blocks, leaving) == pytest.approx(
        convex.displacements(problem, w, whole, leaving), rel=1e-3
    )


def test_a_parquet_file_that_was_read_is_no_memory_of_the_process(tmp_path: Path) -> None:
    file = tmp_path / "unmapped.parquet"
    parquet.write_table(pa.table({"f": X[:, 0].numpy(), "y": Y.numpy()}), file, compression="none")
    rows = sources.ParquetRows([file], ["f"], "y")
    ((inputs, _),) = rows.read([torch.arange(COUNT)])
    assert torch.equal(inputs[:, 0].double(), X[:, 0])
    assert str(file) not in Path("/proc/self/maps").read_text()


def test_a_training_by_steps_refuses_what_it_cannot_hold() -> None:
    samples = ul.Samples(IDS, PEOPLE, sources.NumpyRows(X.numpy(), Y.numpy()))
    mini = recipe(samples, "cross_entropy", 3, epochs=1, batch_size=50, learning_rate=0.1, converge=None)
    there = train(Problem(mini), samples.examples())
    assert torch.equal(train(Problem(mini), samples.examples(most=1)).weights, there.weights)  # batches are picked
    network = Problem(ul.Recipe(**{**vars(mini), "loss": nn.CrossEntropyLoss(reduction="none")}))
    with pytest.raises(Refused, match="read by blocks"):
        Objective(network, samples.examples(most=1))


def test_a_model_with_too_many_weights_for_its_hessian_is_refused_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearning.model.linear_head.MOST_WRITTEN_OUT", 20)
    samples = ul.Samples(IDS, PEOPLE, sources.NumpyRows(X.numpy(), Y.numpy()))
    with pytest.raises(Refused, match="at most 20 weights; this model has 21"):
        train(Problem(recipe(samples, "cross_entropy", 3)), samples.examples(most=1))


@pytest.mark.parametrize(
    ("changes", "columns", "message"),
    [
        ({}, {"target": "label"}, "lacks the columns label"),
        ({}, {"id": "name"}, "lacks the columns name"),
        ({"id": [None, *IDS[1:]]}, {}, "position 0 is not a string or empty"),
        ({"id": [*IDS[:-1], IDS[0]]}, {}, "position 399 occurs twice"),
        ({"who": [*PEOPLE[:-1], None]}, {}, "empty subject"),
        ({"f3": ["text"] * COUNT}, {}, "is no number"),
        ({"f3": [*[0.5] * 200, None, *[0.5] * 199]}, {}, "first at index 200"),
        ({"y": [*[0.0] * 399, float("nan")]}, {}, "targets hold NaN or infinity, the first at index 399"),
    ],
)
def test_what_a_parquet_file_lacks_is_refused(changes: Any, columns: Any, message: str, tmp_path: Path) -> None:
    parquet.write_table(table(**changes), tmp_path / "t.parquet", row_group_size=100)
    with pytest.raises(ul.RecipeError, match=message):
        for _ in ul.Samples.from_parquet(tmp_path / "t.parquet", features=NAMES, **COLUMNS | columns).blocks():
            pass


def test_whole_numbers_name_samples_and_people_and_lists_name_several(tmp_path: Path) -> None:
    several = [[], *[[f"p{row % 7}", "both"] for row in range(1, COUNT)]]
    numbered = table(id=list(range(COUNT)), who=[row % 3 for row in range(COUNT)], groups=several)
    parquet.write_table(numbered, tmp_path / "t.parquet")
    samples = ul.Samples.from_parquet(tmp_path / "t.parquet", features=NAMES, **COLUMNS)
    assert samples.ids[399] == "399" and samples.people[4] == ("1",)
    parquet.write_table(numbered[1:], tmp_path / "t.parquet")
    shared = ul.Samples.from_parquet(tmp_path / "t.parquet", features=NAMES, **COLUMNS | {"person": "groups"})
    assert shared.people[0] == ("both", "p1") and len(shared.people.distinct()) == 7


@pytest.mark.parametrize("changes", [{"id": [float(row) for row in range(COUNT)]}, {"who": [1.0] * COUNT}])
def test_ids_that_are_no_whole_numbers_are_refused(changes: Any, tmp_path: Path) -> None:
    """A person 5018.0 of the frame was 5018, and a request for 5018.0 found no data."""
    (name,) = changes
    with pytest.raises(
        ul.RecipeError, match=f"The column {COLUMNS['id' if name == 'id' else 'person']!r} holds double"
    ):
        ul.Samples.from_frame(table(**changes), inputs=NAMES, **COLUMNS)


def test_a_target_of_texts_is_refused_with_the_line_that_numbers_it() -> None:
    with pytest.raises(ul.RecipeError, match="The column 'y' holds string") as refused:
        ul.Samples.from_frame(table(y=["no", "yes"] * (COUNT // 2)), inputs=NAMES, **COLUMNS)
    assert "frame['y'].map({'no': 0, 'yes': 1})" in refused.value.hint


def test_a_row_group_that_is_too_large_is_refused_with_its_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parquet.write_table(table(), tmp_path / "t.parquet")
    monkeypatch.setattr(sources, "GROUP_BYTES", 10_000)
    with pytest.raises(ul.RecipeError, match="A row group of the Parquet files has 400 rows") as refused:
        ul.Samples.from_parquet(tmp_path / "t.parquet", features=NAMES, **COLUMNS)
    rows = int(refused.value.hint.rpartition("=")[2].rstrip("."))
    parquet.write_table(table(), tmp_path / "t.parquet", row_group_size=rows)
    assert len(ul.Samples.from_parquet(tmp_path / "t.parquet", features=NAMES, **COLUMNS)) == COUNT


def test_without_pyarrow_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ul.RecipeError, match=r"expunge\[parquet\]"):
        ul.Samples.from_parquet("t.parquet", features=NAMES, **COLUMNS)


def test_examples_whose_columns_differ_in_length_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="3 examples have 2 names"):
        Examples.of(torch.arange(3), X[:3], Y[:3], ["a", "b"])


def test_left_examples_hold_no_row_and_no_name_of_those_who_left() -> None:
    left = ul.Samples(IDS, PEOPLE, X, Y).examples().without(torch.arange(0, COUNT, 50))
    assert isinstance(left.rows, Tensors) and len(left.rows) == len(left) == COUNT - 8
    assert "person-0" not in left.people.values and ("person-0",) not in left.subjects.values


class Drifting(Pairs):
    """Gives other values from the second reading of an item on."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.change, self.read = change, set[int]()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = X[index], Y[index]
        again = index in self.read
        self.read.add(index)
        return (self.change(x), y) if again and index == 211 else (x, y)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "the last bit of a number": lambda x: torch.nextafter(x, x + 1),
    "a sign of zero": lambda x: -0.0 * x,
    "two numbers change places": lambda x: x[[1, 0, 2, 3, 4, 5]],
    "the numbers of another": lambda x: X[0],
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("change", CHANGES)
def test_a_sample_that_is_another_when_it_is_read_again_is_refused(change: str, most: int | None) -> None:
    """What is digested is what is trained on, whether the samples are held or read by blocks."""
    samples = ul.Samples.from_dataset(Drifting(CHANGES[change]), ids=IDS, people=PEOPLE, workers=0)
    list(samples.blocks())
    with pytest.raises(Refused, match="Sample 211 has other values when it is read again"):
        list(samples.examples(most=most).blocks())
    chosen = ul.Samples.from_dataset(Drifting(CHANGES[change]), ids=IDS, people=PEOPLE, workers=0).split(0.2)[0]
    list(chosen.blocks())
    with pytest.raises(Refused, match="Sample 211 has other values"):
        chosen.tensors()
