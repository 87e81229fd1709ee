"""What people train with, in the built-in training: equal to torch's own loop, and keyed by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul
from tests.contract.cases import everything, jitter, network, scheduled
from tests.unlearning.trained_here import without
from unlearning.methods.retrain import Retrain
from unlearning.model.problem import Problem
from unlearning.model.training import replay, schedule, train
from unlearning.types import Examples, RecipeError

OPTIMIZERS = [ul.SGD(0.9), ul.SGD(0.9, nesterov=True), ul.AdamW(), ul.AdamW((0.8, 0.95), 1e-4)]


def by_torch(recipe: ul.Recipe, examples: Examples) -> dict[str, Tensor]:
    """Train as one would write it: torch's optimiser with its own weight decay and its own scheduler."""
    training, problem = recipe.training, Problem(recipe, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        module = recipe.model().double()
    named = dict(module.named_parameters())
    groups = [
        {"params": [value for name, value in named.items() if name not in training.undecayed]},
        {"params": [value for name, value in named.items() if name in training.undecayed], "weight_decay": 0.0},
    ]
    chosen, decay = training.optimizer, training.weight_decay
    optimizer: torch.optim.Optimizer
    if isinstance(chosen, ul.AdamW):
        optimizer = torch.optim.AdamW(
            groups, lr=training.learning_rate, betas=chosen.betas, eps=chosen.eps, weight_decay=decay
        )
    else:
        optimizer = torch.optim.SGD(
            groups, training.learning_rate, chosen.momentum, weight_decay=decay, nesterov=chosen.nesterov
        )
    batches = list(schedule(problem, examples.positions))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(module(examples.inputs[batch].double()), examples.targets[batch]).backward()
        optimizer.step()
        scheduler.step()
    return module.state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_the_optimisers_are_torchs_own(optimizer: Any) -> None:
    recipe = network(
        clip=None, optimizer=optimizer, schedule=ul.Schedule("cosine"), undecayed=("0.bias", "2.bias"), weight_decay=0.1
    )
    examples, problem = recipe.samples.examples(), Problem(recipe, dtype=torch.float64)
    expected = by_torch(recipe, examples)
    found = problem.tensors(train(problem, examples).weights)
    assert all(torch.allclose(found[name], value, atol=1e-12) for name, value in expected.items())
    plain = train(Problem(replace(recipe, training=replace(recipe.training, optimizer=ul.SGD()))), examples)
    assert not torch.allclose(problem.flatten(found), plain.weights.double(), atol=1e-2)


@pytest.mark.parametrize(
    "settings", [{}, {"clip": None}, {"batch_size": 8, "accumulate": 3}, {"undecayed": ("0.bias",)}]
)
def test_plain_steps_through_torchs_optimiser_are_the_plain_training(settings: dict[str, Any]) -> None:
    """An augmentation that changes nothing leads through the other loop."""
    plain = network(**settings)
    other = replace(plain, training=replace(plain.training, augment=lambda x, draw: x))
    examples = plain.samples.examples()
    for kwargs in ({}, {"omit": (3, 14, 15, 40)}, {"omit": (3, 14, 15, 40), "reference": "fixed-denominator"}):
        problems = [Problem(recipe, dtype=torch.float64) for recipe in (plain, other)]
        one, two = (train(problem, examples, **kwargs).weights for problem in problems)  # type: ignore[arg-type]
        assert torch.allclose(one, two, atol=1e-6)  # torch adds 1e-6 to the norm that it clips by


def torchs(shape: str, warmup: int, steps: int) -> list[float]:
    """Return the step sizes of torch's schedulers, warm-up first."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    rest = steps - warmup
    last = {
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
        "step": lambda: torch.optim.lr_scheduler.MultiStepLR(optimizer, [rest // 2, rest * 3 // 4], 0.1),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rest, eta_min=0.0),
        "exponential": lambda: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.01 ** (1 / rest)),
    }[shape]
    if warmup:
        first = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
        both = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, last()], [warmup])
    else:
        both = last()  # type: ignore[assignment]
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 8])
@pytest.mark.parametrize("shape", ["constant", "step", "cosine", "exponential"])
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedules_are_those_of_torch(shape: Any, warmup: int) -> None:
    training = ul.Training(epochs=1, learning_rate=0.4, schedule=ul.Schedule(shape, warmup))
    found = [training.rate(step, 48) for step in range(48)]
    assert found == pytest.approx(torchs(shape, warmup, 48), rel=1e-12)
    share = replace(training, schedule=ul.Schedule(shape, warmup / 48))
    assert [share.rate(step, 48) for step in range(48)] == found


@pytest.mark.parametrize("make", [scheduled, lambda: network(batch_size=8, accumulate=2)])
def test_a_scheduled_and_accumulated_training_is_replayed_bit_for_bit(make: Callable[[], ul.Recipe]) -> None:
    recipe = make()
    problem, examples = Problem(recipe), recipe.samples.examples()
    trajectory = train(problem, examples).trajectory
    assert trajectory is not None
    ends = dict(zip(trajectory.starts, trajectory.checkpoints, strict=True))
    alone = replace(
        trajectory, checkpoints=trajectory.checkpoints[:1] + trajectory.checkpoints[-1:], starts=(0, len(trajectory))
    )
    for step, w, _ in replay(problem, examples, alone):
        assert step not in ends or torch.equal(w, ends[step])


def test_accumulation_is_a_larger_batch() -> None:
    small, large = network(batch_size=5, accumulate=3), network(batch_size=15)
    examples = small.samples.examples()
    one, two = (train(Problem(recipe, dtype=torch.float64), examples) for recipe in (small, large))
    assert torch.allclose(one.weights, two.weights, atol=1e-14)
    assert one.trajectory is not None and two.trajectory is not None
    assert all(torch.equal(a, b) for a, b in zip(one.trajectory.batches, two.trajectory.batches, strict=True))


class Spy(nn.Module):
    """A layer whose last input column names the sample, and which notes what dropout made of ones."""

    def __init__(
        self, drop: Callable[[Tensor], Tensor], width: tuple[int, ...], notes: dict[int, list[Tensor]]
    ) -> None:
        super().__init__()
        self.drop, self.width, self.notes = drop, width, notes
        self.gate, self.linear = nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        masks = self.drop(self.gate(torch.ones(len(x), *self.width, dtype=x.dtype)))
        if self.training:
            for name, mask in zip(x[:, -1].tolist(), masks.detach(), strict=True):
                self.notes.setdefault(round(name), []).append(mask)
        return self.linear(x) * masks.reshape(len(x), -1).mean(dim=1, keepdim=True)


DROPS = {
    "none": (lambda x: x, (7,)),
    "dropout": (lambda x: F.dropout(x, 0.3), (5,)),
    "dropout2d": (lambda x: F.dropout2d(x, 0.3), (4, 3, 3)),
    "alpha": (lambda x: F.alpha_dropout(x, 0.3, training=True), (5,)),
    "feature alpha": (lambda x: F.feature_alpha_dropout(x, 0.3, training=True), (5, 2)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4), (2, 4, 3)),
}


def spied(drop: str, notes: dict[int, list[Tensor]], **training: Any) -> ul.Recipe:
    plain = network(clip=None, **training)
    inputs, targets = plain.samples.tensors()
    inputs = torch.cat([inputs[:, :5], torch.arange(60.0).unsqueeze(1)], dim=1) * torch.tensor([1e-3] * 5 + [1.0])
    return replace(
        plain,
        model=lambda: Spy(*DROPS[drop], notes),
        samples=ul.Samples(plain.samples.ids, plain.samples.subjects, inputs, targets),
    )


@pytest.mark.parametrize("drop", DROPS)
def test_without_somebody_everyone_else_draws_the_same_masks(drop: str) -> None:
    full: dict[int, list[Tensor]] = {}
    thin: dict[int, list[Tensor]] = {}
    recipe = spied(drop, full)
    examples = recipe.samples.examples()
    train(Problem(recipe), examples)
    forget, kept = without(examples, {"person-c", "person-h"})
    train(Problem(spied(drop, thin)), kept, planned=examples.positions)
    assert sorted(thin) == kept.positions.tolist()
    assert sorted(full) == examples.positions.tolist()
    for name, masks in thin.items():
        assert len(masks) == 5, "one for each pass"
        assert all(torch.equal(one, two) for one, two in zip(masks, full[name], strict=True))
    drawn = [tuple(masks[0].flatten().tolist()) for masks in full.values()]
    assert len(set(drawn)) > 10, "samples differ"
    assert any(not torch.equal(masks[0], masks[1]) for masks in full.values()), "passes differ"
    assert forget


def test_without_somebody_everyone_else_is_augmented_alike() -> None:
    def noted(notes: dict[int, list[Tensor]]) -> Callable[[Tensor, Any], Tensor]:
        def augment(x: Tensor, draw: Any) -> Tensor:
            moved = jitter(x, draw)
            for name, row in zip(x[:, 0].tolist(), moved, strict=True):
                notes.setdefault(round(name * 1e6), []).append(row.clone())
            return moved

        return augment

    full: dict[int, list[Tensor]] = {}
    thin: dict[int, list[Tensor]] = {}
    recipe = everything(augment=noted(full), batch_size=20, accumulate=1)
    examples = recipe.samples.examples()
    train(Problem(recipe), examples)
    _, kept = without(examples, {"person-a", "person-k"})
    train(Problem(everything(augment=noted(thin), batch_size=20, accumulate=1)), kept, planned=examples.positions)
    assert len(thin) == len(kept)
    assert all(torch.equal(torch.stack(rows), torch.stack(full[name])) for name, rows in thin.items())
    assert all(len({tuple(row.tolist()) for row in rows}) == 5 for rows in full.values()), "each pass draws for itself"


def test_masks_keep_as_many_as_torchs_dropout_and_as_much() -> None:
    notes: dict[int, list[Tensor]] = {}
    recipe = spied("none", notes, epochs=60)
    train(Problem(recipe), recipe.samples.examples())
    values = torch.cat([torch.stack(masks).flatten() for masks in notes.values()])
    assert set(values.tolist()) == {0.0, 2.0}
    assert abs(float(values.mean()) - 1.0) < 5 / len(values) ** 0.5


def test_a_transformer_layer_is_keyed_and_a_module_with_its_own_random_numbers_is_refused() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn_like(x) if self.training else x

    class Tokens(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=first)
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=first)
            self.into, self.out, self.first = nn.Linear(6, 40), nn.Linear(40, 3), first

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.into(x).reshape(len(x), 5, 8)
            tokens = tokens if self.first else tokens.transpose(0, 1)
            tokens = self.attention(*[self.layer(tokens)] * 3)[0]
            return self.out((tokens if self.first else tokens.transpose(0, 1)).reshape(len(x), 40))

    examples = network().samples.examples()
    recipe = replace(network(), model=lambda: Tokens(True))
    torch.manual_seed(1)
    once = train(Problem(recipe), examples).weights
    torch.manual_seed(2)
    assert torch.equal(train(Problem(recipe), examples).weights, once)
    with pytest.raises(RecipeError, match="no row of a sample"):
        train(Problem(replace(network(), model=lambda: Tokens(False))), examples)
    noisy = replace(network(), model=lambda: nn.Sequential(Noise(), nn.Dropout(0.1), nn.Linear(6, 3)))
    with pytest.raises(RecipeError, match="randn_like"):
        train(Problem(noisy), examples)


def test_running_statistics_are_trained_and_published_and_no_gradient_reaches_them() -> None:
    recipe = everything()
    problem, examples = Problem(recipe), recipe.samples.examples()
    w = train(problem, examples).weights
    tensors = problem.tensors(w)
    assert int(tensors["1.num_batches_tracked"]) == 40, "five passes of 8 batches"
    module = recipe.model().eval()
    module.load_state_dict(tensors)
    x, y = recipe.holdout
    assert torch.allclose(module(x), problem.outputs(w, x), atol=1e-6)
    buffers = [slot for slot in problem.layout if slot.buffer]
    assert {slot.name for slot in buffers} == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    gradient = problem.gradient(w, x, y)
    for slot in buffers:
        assert not gradient[slot.start : slot.stop].any() and not problem.decay[slot.start : slot.stop].any()


def test_a_single_sample_is_not_normalised_alone() -> None:
    recipe = everything(batch_size=59, accumulate=1)
    problem, examples = Problem(recipe), recipe.samples.examples()
    assert int(problem.tensors(train(problem, examples).weights)["1.num_batches_tracked"]) == 5


def test_retraining_repeats_everything_and_draws_the_same_for_those_who_stay() -> None:
    recipe = everything()
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = train(problem, examples)
    assert learned.trajectory is None
    method = Retrain()
    state = method.prepare(problem, examples, learned)
    forget, kept = without(examples, {"person-b"})
    found = method.forget(problem, state, forget, kept, torch.Generator()).state.weights
    renumbered = replace(kept, positions=torch.arange(len(kept)))
    assert torch.equal(found, train(problem, renumbered).weights)
