"""What a model brings along: found, listed by name and digest, and refused unless declared public."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

import unlearning as ul
from tests.unlearning.recipes import draw, perceptron, recipe
from unlearning.model import parts
from unlearning.types import RecipeError, Refused

X = draw(40, 6).float()
Y = (X[:, :3] + draw(40, 3, seed=1).float()).argmax(dim=1)


MEANS = X.mean(dim=0)
BY_NAME = {"age": float(X[:, 0].mean()), "bill": float(X[:, 1].mean())}
FITTED = torch.linalg.lstsq(X, nn.functional.one_hot(Y, 3).float()).solution.T


def of(model: Callable[[], nn.Module], **more: Any) -> ul.Recipe:
    return recipe(model, X, Y, **more)


def declaring(made: ul.Recipe, public: dict[str, str]) -> ul.Recipe:
    return ul.Recipe(made.model, made.samples, made.holdout, made.loss, made.training, made.weights, public=public)


def head(width: int = 6) -> nn.Linear:
    return nn.Linear(width, 3, bias=False)


def frozen(part: nn.Module) -> nn.Module:
    return part.requires_grad_(False)


class WithBuffer(nn.Module):
    """Holds what it is given as a buffer, and passes its inputs on."""

    def __init__(self, value: torch.Tensor, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("held", value, persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WithMethod(WithBuffer):
    """Reads a global variable when it is called."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shifted(x)

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([each - MEANS for each in x])


class OfTheClass(nn.Module):
    means = X.mean(dim=0).tolist()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.new_tensor(self.means)


@dataclass(frozen=True, slots=True)
class Statistics:
    mean: torch.Tensor


class WithAttribute(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.held = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def with_attribute(value: Any) -> nn.Module:
    return nn.Sequential(WithAttribute(value), head())


def shifting_by(mean: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x - mean


def standardised() -> nn.Module:
    first = nn.Linear(6, 6)
    with torch.no_grad():
        first.weight.copy_(torch.diag(1 / X.std(dim=0)))
        first.bias.copy_(-X.mean(dim=0) / X.std(dim=0))
    return nn.Sequential(frozen(first), head())


def fitted_start() -> nn.Module:
    module = head()
    with torch.no_grad():
        module.weight.copy_(FITTED)
    return module


def fitted_start_with_noise() -> nn.Module:
    """Differs under two seeds, and is the same start all the same."""
    module = nn.Linear(600, 3, bias=False)
    with torch.no_grad():
        module.weight += 0.5 * draw(3, 600, seed=7).float()
    return module


def fitted_start_of_few() -> nn.Module:
    """18 numbers, and a tenth of noise on each."""
    module = head()
    with torch.no_grad():
        module.weight.copy_(FITTED * (1 + 0.1 * torch.randn(3, 6)))
    return module


def one_number() -> nn.Module:
    return nn.Sequential(WithBuffer(X.mean().reshape(())), head())


def added_by_a_hook() -> nn.Module:
    def add(_module: nn.Module, state: dict[str, torch.Tensor], _prefix: str, _metadata: object) -> None:
        state["rows"] = X.clone()

    module = head()
    module._register_state_dict_hook(add)
    return module


TRAPS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "a buffer of training rows": (lambda: nn.Sequential(WithBuffer(X.clone()), head()), "0.held", "buffer"),
    "a buffer outside the state_dict": (lambda: nn.Sequential(WithBuffer(X, False), head()), "0.held", "buffer"),
    "a single mean": (one_number, "0.held", "buffer"),
    "a plain tensor": (lambda: nn.Sequential(WithAttribute(X.mean(dim=0)), head()), "0.held", "attribute"),
    "an array in a list": (lambda: nn.Sequential(WithAttribute([X.numpy()]), head()), "0.held.0", "attribute"),
    "a tensor in a dictionary": (lambda: nn.Sequential(WithAttribute({"a": X}), head()), "0.held.a", "attribute"),
    "a fitted object": (lambda: with_attribute(Statistics(X.mean(dim=0))), "0.held.mean", "attribute"),
    "a fitted scaler": (lambda: with_attribute(StandardScaler().fit(X.numpy())), "0.held.mean_", "attribute"),
    "a list of Python's numbers": (lambda: with_attribute(X.mean(dim=0).tolist()), "0.held", "attribute"),
    "a single number of numpy's": (lambda: with_attribute(X.numpy().std()), "0.held", "attribute"),
    "arguments of a partial": (
        lambda: with_attribute(partial(torch.sub, other=X)),
        "0.held.keywords.other",
        "attribute",
    ),
    "a closure": (lambda: with_attribute(shifting_by(X.mean(dim=0))), "0.held.mean", "attribute"),
    "a global variable": (lambda: nn.Sequential(WithMethod(), head()), "0.shifted.MEANS", "attribute"),
    "a class's attribute": (lambda: nn.Sequential(OfTheClass(), head()), "0.means", "attribute"),
    "a module that a list hides": (
        lambda: with_attribute([frozen(head())]),
        "0.held.0._parameters.weight",
        "attribute",
    ),
    "a state_dict that a hook adds to": (added_by_a_hook, "rows", "state"),
    "standardised on everyone": (standardised, "0.bias", "frozen"),
    "a frozen draw of the seed": (lambda: nn.Sequential(frozen(nn.Linear(6, 6)), head()), "0.bias", "frozen"),
    "a start fitted on everyone": (fitted_start, "weight", "start"),
    "a fitted start with noise": (fitted_start_with_noise, "weight", "start"),
    "a fitted start of few numbers with noise": (fitted_start_of_few, "weight", "start"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_what_could_hold_people_is_found_and_refused(trap: str) -> None:
    model, name, kind = TRAPS[trap]
    found = parts.parts_of(of(model))
    assert (name, kind) in [(part.name, part.kind) for part in found]
    with pytest.raises(Refused, match=f"does not declare public.*public=.*{name.partition('.')[0]}"):
        parts.require_declared(of(model), found)


@pytest.mark.parametrize("trap", TRAPS)
def test_the_line_to_paste_declares_it(trap: str) -> None:
    made = of(TRAPS[trap][0])
    line = parts.to_paste(parts.parts_of(made))
    declared = declaring(made, eval(line.removeprefix("public=")))
    found = parts.parts_of(declared)
    assert found and all(part.public for part in found)
    parts.require_declared(declared, found)


class OfSettings(nn.Module):
    """Its constructor reads everyone's data, and keeps whole numbers and single ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(X.shape[1], int(Y.max()) + 1)
        self.eps, self.sizes, self.rates = 1e-5, (3, 3), {"dropout": 0.1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(nn.functional.layer_norm(x, x.shape[1:], eps=self.eps))
        return result


FREE: dict[str, Callable[[], nn.Module]] = {
    "a linear head": head,
    "a network": perceptron,
    "a start of zeros": lambda: nn.Sequential(head(), nn.LayerNorm(3)),
    "fresh running statistics": lambda: nn.Sequential(nn.BatchNorm1d(6).eval(), head()),
    "a convolution and an embedding": lambda: nn.Sequential(nn.Conv1d(3, 70, 3), nn.Embedding(50, 20, padding_idx=0)),
    "attention": lambda: nn.TransformerEncoderLayer(16, 2, 32),
    "recurrent": lambda: nn.LSTM(16, 32, 2),
    "settings": OfSettings,
    "one number": lambda: nn.Linear(1, 1),
}


@pytest.mark.parametrize("free", FREE)
def test_a_constructor_needs_no_declaration(free: str) -> None:
    made = of(FREE[free])
    assert parts.parts_of(made) == ()
    parts.require_declared(made, ())


def test_many_random_starts_are_never_taken_for_fixed_ones() -> None:
    for width in range(1, 120):
        assert parts.parts_of(of(lambda width=width: nn.Linear(width, width), seed=width)) == ()  # type: ignore[misc]


def test_a_model_that_trains_itself_is_refused_although_its_start_changes() -> None:
    def trained_on_everyone() -> nn.Module:
        module = head()
        step = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(3):
            step.zero_grad()
            nn.functional.cross_entropy(module(X), Y).backward()
            step.step()
        return module

    made = of(trained_on_everyone)
    assert parts.parts_of(made) == ()
    with pytest.raises(Refused, match="it trains something itself"):
        parts.require_declared(made, ())


def test_a_declaration_that_does_not_fit_is_refused() -> None:
    made = of(standardised)
    [bias, _] = parts.parts_of(made)
    wrong = "0" * 64
    with pytest.raises(RecipeError, match=f"'0.bias' has the digest {wrong}; it has {bias.digest}"):
        parts.parts_of(declaring(made, {"0.bias": wrong}))
    with pytest.raises(RecipeError, match=r"no fixed part of the model\. The fixed parts are: 0.bias, 0.weight"):
        parts.parts_of(declaring(made, {"1.weight": wrong}))
    with pytest.raises(RecipeError, match="64 hexadecimal digits"):
        declaring(made, {"0.bias": "abc"})


def test_one_declared_part_covers_no_other() -> None:
    made = of(standardised)
    [bias, weight] = parts.parts_of(made)
    found = parts.parts_of(declaring(made, {bias.name: bias.digest}))
    assert [(part.name, part.public) for part in found] == [(bias.name, True), (weight.name, False)]
    with pytest.raises(Refused, match=r"'0\.weight' \(36 numbers\)"):
        parts.require_declared(made, found)


def test_a_digest_tells_dtype_shape_and_numbers_apart() -> None:
    value = torch.arange(6, dtype=torch.float32)
    others = [value.double(), value.reshape(2, 3), value.flip(0), value[:5]]
    assert len({parts.digest_of(each) for each in (value, *others)}) == 5
    assert parts.digest_of(value) == parts.digest_of(torch.from_numpy(np.arange(12, dtype=np.float32))[:6])
    assert parts.digest_of(value.reshape(2, 3)) == parts.digest_of(value.reshape(2, 3).T.contiguous().T)
    assert parts.digest_of(value.bfloat16()) != parts.digest_of(value.half())


def test_the_start_of_a_model_trained_elsewhere_is_not_used() -> None:
    made = of(fitted_start, weights={"weight": torch.zeros(3, 6)})
    assert parts.parts_of(made) == ()


# What train, the loss and augment refer to

ROWS = X.clone()
COUNTS = np.bincount(Y.numpy(), minlength=3)
OBSERVED = np.zeros(2, dtype=[("age", "f8"), ("of", "i4")])
OBSERVED["age"] = X[:2, 0].numpy()
RATES = [0.1, 0.05, 0.025]
CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 1.5])


class Constants:
    mean = X.mean(dim=0)


class Scaled:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x - MEANS


def weighing(weights: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, weight=weights, reduction="none")


def shift(x: torch.Tensor) -> torch.Tensor:
    return x - ROWS.mean(dim=0)


class Trains:
    """A training that is an object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, run: ul.Run) -> None:
        run.model(run.inputs)


def in_a_folder(tmp_path: Path, **values: Any) -> ModuleType:
    """A module of the recipe's folder with these values; it is not kept among the loaded ones."""
    file = tmp_path / "settings_of_mine.py"
    file.write_text("LEARNED = None\nSCHEDULE = [0.25, 0.5]\ndef schedule():\n    return SCHEDULE\n")
    spec = importlib.util.spec_from_file_location("settings_of_mine", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(values)
    return module


def training(train: Callable[[ul.Run], Any], **more: Any) -> ul.Recipe:
    samples = ul.Samples([f"s{k}" for k in range(40)], [f"p{k}" for k in range(40)], X, Y)
    return ul.Recipe(head, samples, (X[:4], Y[:4]), "cross_entropy", train=train, **more)


REFERENCES: dict[str, tuple[Callable[[ul.Run], Any], str, str]] = {
    "a copy of the table": (lambda run: run.inputs - ROWS.mean(dim=0), "train.ROWS", "line"),
    "a copy as an array": (lambda run: len(COUNTS), "train.COUNTS", "line"),
    "a function further on": (lambda run: shift(run.inputs), "train.shift.ROWS", "line"),
    "columns of an array": (lambda run: OBSERVED["age"], "train.OBSERVED.age", "line"),
    "a dictionary of means": (lambda run: BY_NAME["age"], "train.BY_NAME", "line"),
    "a plain class": (lambda run: run.inputs - Constants.mean, "train.Constants.mean", "line"),
    "a class's constructor": (lambda run: Scaled(run.inputs), "train.Scaled.__init__.MEANS", "line"),
    "an object's value": (Trains(X.mean(dim=0)), "train.value", ""),
    "an object's class": (Trains(Constants()), "train.value.mean", ""),
    "other types": (Trains(X.numpy().astype(">f2")), "train.value", ""),
    "complex numbers": (Trains(X.numpy().astype(complex)), "train.value", ""),
    "long doubles": (Trains(X.numpy().astype(np.longdouble)), "train.value", ""),
    "a column of a library": (Trains(pyarrow.array(X[:, 0].numpy())), "train.value.values", ""),
}


@pytest.mark.parametrize("reference", REFERENCES)
def test_numbers_that_a_training_refers_to_are_listed_and_refused_with_the_line(reference: str) -> None:
    train, name, said = REFERENCES[reference]
    made = training(train)
    found = parts.parts_of(made)
    assert (name, parts.REFERENCE) in [(part.name, part.kind) for part in found]
    with pytest.raises(
        Refused, match=rf"refers to as '{name}' \(\d+ numbers(, {said} \d+ of test_parts.py)?\)"
    ) as raised:
        parts.require_declared(made, found)
    assert (", line " in str(raised.value)) == bool(said)
    declared = training(train, public=eval(parts.to_paste(found).removeprefix("public=")))
    parts.require_declared(declared, parts.parts_of(declared))


def test_numbers_that_the_loss_and_augment_refer_to_are_listed() -> None:
    weights = X.mean(dim=0)[:3]
    built_in = ul.Training(epochs=1, learning_rate=0.1, augment=lambda x, draw: x - MEANS)
    made = ul.Recipe(head, training(lambda run: None).samples, (X[:4], Y[:4]), weighing(weights), built_in)
    assert [part.name for part in parts.parts_of(made)] == ["augment.MEANS", "loss.weights"]


def test_numbers_of_a_module_in_the_recipes_folder_are_listed_and_its_schedule_is_code(tmp_path: Path) -> None:
    mine = in_a_folder(tmp_path, LEARNED=X.mean(dim=0))
    made = training(lambda run: (mine.LEARNED, mine.SCHEDULE, mine.schedule()))
    assert [part.name for part in parts.parts_of(made)] == ["train.mine.LEARNED"]


def test_samples_holdout_settings_and_numbers_that_the_source_writes_out_need_no_declaration() -> None:
    """The samples and the holdout are what the trial overwrites; a schedule is code, as its digest says."""
    late = [0.3, 0.2]

    def train(run: ul.Run) -> object:
        return X.shape, Y, torch.nn, np.mean, RATES, CLASS_WEIGHTS, late, LOSSES, SPREADS, shorten(run)

    assert parts.parts_of(training(train)) == ()


LOSSES = {"first": 0.5, "second": 1.5}
SPREADS = dict(age=20.5, bill=30.5)


def shorten(run: ul.Run, rate: float = 0.25, passes: int = 40, *, decay: float = 0.125) -> object:
    return run.inputs[:3] if run.share < 0.5 else run.inputs
