"""Recipes, policies and deletions drawn at random; a trap is one that no claim may be made about."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import unlearning as ul
from unlearning.accounting.policy import Policy

LOSSES = ("cross_entropy", "binary_logistic", "squared_error", "squared_hinge")
TRAP_SHARE = 0.4


@dataclass(frozen=True)
class Drawn:
    recipe: ul.Recipe
    given: Mapping[str, Any]
    """of the policy"""
    deletions: tuple[frozenset[str], ...]
    trap: str | None
    words: str

    @property
    def policy(self) -> Policy:
        """Raises PolicyError."""
        return Policy.from_json({"max_accuracy_drop": None, **self.given})

    def __str__(self) -> str:
        return self.words


@dataclass
class Plan:
    """What a draw is made of; a trap changes some of it."""

    draws: random.Random
    loss: str
    x: Tensor
    y: Tensor
    classes: int
    bias: bool
    training: dict[str, Any]
    policy: dict[str, Any]
    parts: list[Callable[[], nn.Module]] = field(default_factory=list)
    layer: Callable[[Plan], nn.Module] = lambda plan: nn.Linear(plan.width, plan.classes, bias=plan.bias)
    finish: Callable[[nn.Module], object] = lambda _: None
    width: int = 0
    callable_loss: bool = False

    def model(self) -> nn.Module:
        layer = self.layer(self)
        made = nn.Sequential(*(part() for part in self.parts), layer) if self.parts else layer
        self.finish(made)
        return made


def draw(draws: random.Random, trap: str | None = None) -> Drawn:
    """One recipe with its policy and deletions; ``trap`` names what is wrong with it, else chance decides."""
    if trap is None and draws.random() < TRAP_SHARE:
        trap = draws.choice(TRAPS)
    plan = _plan(draws, _LOSS_OF.get(trap or ""), _METHOD_OF.get(trap or ""))
    if trap is None:
        _decorate(plan)
    else:
        _TRAPS[trap](plan)
    count, people = len(plan.x), draws.randint(6, 12)
    subjects = [f"p{index % people}" for index in range(count)]
    samples = ul.Samples([f"s{index}" for index in range(count)], subjects, plan.x, plan.y)
    loss: Any = (lambda outputs, targets: (outputs - targets).square().sum(dim=1)) if plan.callable_loss else plan.loss
    training = ul.Training(**plan.training)
    recipe = ul.Recipe(plan.model, samples, (plan.x[:4], plan.y[:4]), loss, training)
    who = draws.sample(sorted(set(subjects)), draws.randint(1, 3))
    words = f"{trap or 'plain'} {plan.loss} {tuple(plan.x.shape)} {plan.x.dtype} {plan.training} {plan.policy}"
    return Drawn(recipe, plan.policy, tuple(frozenset({each}) for each in who), trap, words)


def _plan(draws: random.Random, loss: str | None, method: str | None) -> Plan:
    method = method or draws.choices(("newton", "recollection", "rewind", "retrain", "safe"), (8, 3, 4, 3, 1))[0]
    loss = loss or draws.choice(LOSSES[:2] if method in ("rewind", "safe") else LOSSES)
    count, width = draws.randint(18, 48), draws.randint(2, 5)
    x = _normal(draws, count, width) * 10 ** draws.uniform(-1.0, 1.0)
    if draws.random() < 0.2 and method != "rewind":
        x[draws.randrange(count)] *= 20.0
    x = x.float() if draws.random() < 0.4 else x
    classes = 1 if loss == "binary_logistic" else draws.randint(2, 4)
    if loss == "squared_hinge" and draws.random() < 0.5:
        classes = 1
    y = _targets(draws, loss, count, classes, hard=method in ("rewind", "safe"))
    plan = Plan(draws, loss, x, y, classes, draws.random() < 0.5, {}, {"method": method}, width=width)
    plan.training = {"weight_decay": 10 ** draws.uniform(-3.0, -0.5), "seed": draws.randrange(1000)}
    _settings(plan, method)
    return plan


def _settings(plan: Plan, method: str) -> None:
    draws, decay = plan.draws, plan.training["weight_decay"]
    longest = math.sqrt(float(plan.x.double().square().sum(dim=1).max()) + plan.bias)
    rate = draws.uniform(0.1, 0.9) / (longest**2 * max(1.0, float(plan.y.double().abs().max())) + decay)
    epochs = draws.randint(3, 25)
    if method == "rewind":
        plan.training |= {"epochs": epochs, "learning_rate": rate}
        if draws.random() < 0.4:
            plan.training["sample_clip"] = draws.uniform(0.2, 2.0) * longest
        norm = longest * draws.choice((1.0, 1.0 / (1 + 0.9e-6), 1.5))
        options = {"feature_norm": norm, "fraction": draws.choice((0.3, 0.6, 0.9, 1.0))}
        plan.policy |= {"guarantee": "proved", "options": options, "epsilon": 100}
        return plan.policy.update({"max_distance": 0.5 / longest, "noise_std": 1.0 / longest})
    converges = method != "retrain" or draws.random() < 0.5
    plan.training |= {"epochs": draws.choice((0, epochs)) if converges else epochs, "learning_rate": rate}
    if converges:
        plan.training["converge"] = 1e-9 * max(1.0, longest) * max(1.0, float(plan.y.double().abs().max()))
    if method == "retrain":
        return plan.policy.update({"guarantee": "exact"})
    cap = 10 ** draws.uniform(-5.0, -3.0) * max(1.0, float(plan.y.double().abs().max()))
    plan.policy |= {"guarantee": "proved", "max_distance": cap, "noise_std": 100 * cap}
    return None


def _normal(draws: random.Random, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(draws.getrandbits(40)), dtype=torch.float64)


def _targets(draws: random.Random, loss: str, count: int, classes: int, hard: bool) -> Tensor:
    if loss == "squared_error":
        y = _normal(draws, count, classes) * 10 ** draws.uniform(-1.0, 2.0)
        return y.round().long() if draws.random() < 0.2 else y
    if loss == "binary_logistic" and not hard and draws.random() < 0.5:
        return _normal(draws, count).sigmoid()
    labels = torch.arange(count) % max(2, classes)
    if loss != "cross_entropy" or hard or draws.random() < 0.4:
        return labels.double() if classes == 1 and draws.random() < 0.5 else labels
    scores = 2.0 * _normal(draws, count, classes)
    one_hot = torch.nn.functional.one_hot(labels, classes).double()
    ways = {
        "float32 softmax": scores.float().softmax(dim=1),
        "multi-hot": torch.maximum(one_hot, (scores > 0).double()),
        "sums": one_hot * 10 ** draws.uniform(-1.0, 1.5),
        "some rows empty": one_hot * (scores[:, :1] > -2.0),
        "half precision": scores.softmax(dim=1).half(),
    }
    return ways[draws.choice(list(ways))]


def _decorate(plan: Plan) -> None:
    """What is legitimate before a head."""
    kind, width = plan.draws.choice(("alone", "flat", "nested", "frozen", "norm", "alone")), plan.width
    if plan.policy["method"] == "rewind" and kind in ("frozen", "norm"):
        kind = "flat"  # the norm of the features is declared for the inputs
    if kind in ("flat", "nested"):
        plan.x = plan.x.unsqueeze(1)
        plan.parts = [nn.Flatten] if kind == "flat" else [lambda: nn.Sequential(nn.Flatten(), nn.Identity())]
    elif kind == "frozen":
        plan.parts = [lambda: nn.Sequential(nn.Linear(width, width), nn.Tanh()).requires_grad_(requires_grad=False)]
    elif kind == "norm":
        plan.parts = [lambda: nn.BatchNorm1d(width).eval().requires_grad_(requires_grad=False)]


# Traps


class Part(nn.Module):
    """A part without parameters of its own."""

    def __init__(self, work: Callable[..., Tensor], *kept: object) -> None:
        super().__init__()
        self.work, self.kept = work, kept

    def forward(self, x: Tensor) -> Tensor:
        return self.work(x, *self.kept)


class Halved(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value / 2


class Cubed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum() * 1e-3


def _hook(plan: Plan) -> None:
    kinds = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
    kind, place = plan.draws.choice(kinds), plan.draws.random()
    plan.parts = [nn.Flatten]

    def finish(module: nn.Module) -> None:
        part = list(module.modules())[int(place * 3)]
        getattr(part, kind)(_HOOKED[kind])

    plan.finish = finish


_HOOKED: dict[str, Callable[..., object]] = {
    "register_forward_hook": lambda _part, _inputs, out: out + out.square(),
    "register_forward_pre_hook": lambda _part, inputs: (inputs[0] * inputs[0].abs().mean(),),
    "register_full_backward_hook": lambda _part, inputs, _outputs: tuple(
        None if each is None else 2 * each for each in inputs
    ),
}


def _replaced(plan: Plan) -> None:
    name, place = plan.draws.choice(("forward", "_call_impl")), plan.draws.random()
    plan.parts = [nn.Flatten]

    def finish(module: nn.Module) -> None:
        part = list(module.modules())[int(place * 3)]
        was = getattr(part, name)
        setattr(part, name, lambda x: was(x) + was(x).square())

    plan.finish = finish


def _tied(plan: Plan) -> None:
    way, largest = plan.draws.choice(("layer", "parameter", "rare")), plan.x[:, 0].max()

    def turned(x: Tensor, kept: Any) -> Tensor:
        weight = kept.weight if isinstance(kept, nn.Module) else kept
        changed = x * (1.0 + weight.abs().mean())
        return torch.where(x[:, :1] >= largest.to(x), changed, x) if way == "rare" else changed

    def finish(module: nn.Module) -> None:
        layer = list(module.children())[-1]
        next(iter(module.children())).kept = ((layer if way == "layer" else layer.weight),)

    plan.parts, plan.finish = [lambda: Part(turned)], finish


def _before(work: Callable[..., Tensor]) -> Callable[[Plan], None]:
    def trap(plan: Plan) -> None:
        plan.parts = [lambda: Part(work)]

    return trap


def _finished(change: Callable[[nn.Module], object]) -> Callable[[Plan], None]:
    def trap(plan: Plan) -> None:
        plan.finish = change

    return trap


def _set(**changes: Any) -> Callable[[Plan], None]:
    def trap(plan: Plan) -> None:
        plan.training |= changes

    return trap


def _undecayed(plan: Plan) -> None:
    plan.bias = True
    plan.training["undecayed"] = ("bias",)


def _two_layers(plan: Plan) -> None:
    plan.parts = [lambda: nn.Linear(plan.width, plan.width)]


def _labels(make: Callable[[Plan], Tensor]) -> Callable[[Plan], None]:
    def trap(plan: Plan) -> None:
        plan.y = make(plan)

    return trap


def _shifted(plan: Plan) -> Tensor:
    scores = _normal(plan.draws, len(plan.x), plan.classes)
    return scores.softmax(dim=1) - plan.draws.choice((0.3, 1.0))


def _shape(plan: Plan) -> None:
    plan.x = plan.x.unsqueeze(1)


def _underdeclared(plan: Plan) -> None:
    plan.bias = False
    longest = float(plan.x.double().norm(dim=1).max())
    plan.policy["options"] |= {"feature_norm": longest * plan.draws.choice((0.5, 0.999, 1 - 1e-5))}


def _small_decay(plan: Plan) -> None:
    plan.x = plan.x.double() * (1e4 / float(plan.x.double().norm(dim=1).max()))
    plan.training |= {"weight_decay": 1e-9, "converge": 1.0, "epochs": 0}
    plan.policy |= {"max_distance": 1e-5, "noise_std": 1e-3}


def _last(module: nn.Module) -> Any:
    return list(module.modules())[-1]


def _policy(**changes: Any) -> Callable[[Plan], None]:
    def trap(plan: Plan) -> None:
        plan.policy |= changes

    return trap


def _callable(plan: Plan) -> None:
    plan.callable_loss = True


def _subclass(plan: Plan) -> None:
    plan.layer = lambda plan: Cubed(plan.width, plan.classes, bias=plan.bias)


def _soft_rewind(plan: Plan) -> None:
    plan.y = torch.nn.functional.one_hot(plan.y, plan.classes).double() * 1.5


_TRAPS: dict[str, Callable[[Plan], None]] = {
    "a hook": _hook,
    "a replaced forward": _replaced,
    "a tied part": _tied,
    "a part that mixes the batch": _before(lambda x: x - x.mean(dim=0)),
    "a part that draws numbers": _before(lambda x: x + 0.1 * torch.randn_like(x)),
    "a part in single precision": _before(lambda x: x.float()),
    "a parametrised layer": _finished(
        lambda made: parametrize.register_parametrization(_last(made), "weight", Halved())
    ),
    "a gradient's hook": _finished(lambda made: _last(made).weight.register_hook(lambda slope: 2 * slope)),
    "a layer's class": _subclass,
    "an undecayed bias": _undecayed,
    "no decay": _set(weight_decay=0.0),
    "clipped samples": _set(sample_clip=1.0),
    "no convergence": _set(converge=None, epochs=5),
    "two layers": _two_layers,
    "a loss of one's own": _callable,
    "negative soft labels": _labels(_shifted),
    "an ignored class": _labels(lambda plan: torch.where(plan.y.long() == 0, -100, 1)),
    "targets beyond 1": _labels(lambda plan: 3.0 * plan.y.double() - 1.0),
    "inputs that are no matrix": _shape,
    "rounding above the cap": _small_decay,
    "a tiny delta": _policy(delta=1e-15),
    "features longer than declared": _underdeclared,
    "soft labels rewound": _soft_rewind,
    "mini-batches rewound": _set(batch_size=5),
}
TRAPS = tuple(_TRAPS)
_LOSS_OF = {
    "an undecayed bias": "cross_entropy",
    "rounding above the cap": "cross_entropy",
    "negative soft labels": "cross_entropy",
    "an ignored class": "cross_entropy",
    "targets beyond 1": "binary_logistic",
    "inputs that are no matrix": "squared_error",
    "a loss of one's own": "squared_error",
    "soft labels rewound": "cross_entropy",
    "features longer than declared": "binary_logistic",
}
_REWOUND = ("features longer than declared", "soft labels rewound", "mini-batches rewound")
_METHOD_OF = {**dict.fromkeys(TRAPS, "newton"), **dict.fromkeys(_REWOUND, "rewind")}
