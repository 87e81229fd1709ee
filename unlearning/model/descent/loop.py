"""The built-in training where it is more than plain gradient steps: torch's optimisers, dropout, augmentation.

The steps are those of ``plan``, as in the plain training. What follows from a sample (its gradient, its masks, its
augmentation) is the same without other people; batch normalisation depends on the rest of a batch, by its nature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unlearning.model.descent.ball import hold_within
from unlearning.model.descent.draws import below, keys_of, uniform
from unlearning.model.descent.fitted import Fitted, packed, unpacked
from unlearning.model.descent.ingredients import Ingredient
from unlearning.model.descent.keyed import Keyed
from unlearning.model.descent.plan import Steps, denominator_of
from unlearning.model.problem import Problem, build
from unlearning.settings import SGD
from unlearning.types import Examples, Progress, RecipeError, silent

WHOLE = "all"
"""keys the random numbers of a training, with its seed"""


def descend(
    problem: Problem,
    examples: Examples,
    plan: Steps,
    *,
    start: Fitted | None = None,
    progress: Progress = silent,
) -> Fitted:
    """Take the plan's steps on those of ``examples`` in its batches, from ``start`` or from the constructor.

    With ``Training.radius`` each step ends in the ball of that radius, as the last weights do.
    The optimiser's state is a part of what is returned.
    A part of a batch that has a single sample, which cannot be normalised by its batch, is left out where the model
    normalises so.

    Raises:
        RecipeError: the weights stop being finite, the model draws random numbers that cannot be keyed, or
            mixed precision is asked for without a GPU.
    """
    module = _module(problem)
    if start is not None:
        module.load_state_dict(problem.tensors(start.weights))
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    optimizer = _optimizer(problem, trained)
    if start is not None and start.facts is not None:
        optimizer.load_state_dict(unpacked(start.tensors, start.facts))
    people = ["\n".join(names) for names in examples.subjects]
    keys = keys_of((str(problem.training.seed), WHOLE), people).to(problem.device)
    for step, (positions, rate) in enumerate(zip(plan.batches, plan.rates, strict=True)):
        progress(step / len(plan.batches))
        here = examples.places(positions)
        parts = _parts(problem, here, below(keys[here], (plan.first + step) // plan.steps_a_pass))
        denominator = denominator_of(plan.reference, len(positions), sum(len(places) for places, _ in parts))
        optimizer.zero_grad(set_to_none=False)
        for places, passed in parts:
            loss = _losses(problem, module, *examples.pick(places), passed)
            torch.autograd.backward(loss.sum() / denominator)
        _decay_and_clip(problem, trained)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        hold_within(tuple(trained.values()), problem.training.radius)
    state = module.state_dict()
    if not all(bool(torch.isfinite(value).all()) for value in state.values()):
        raise RecipeError(
            f"The weights are not finite after {plan.first + len(plan.batches)} steps.", "Lower the learning rate."
        )
    progress(1.0)
    return Fitted(problem.flatten(state), *packed(optimizer.state_dict()))


def _module(problem: Problem) -> nn.Module:
    """Build the module, each part in the mode that ``model()`` leaves it in; in evaluation where that is the same.

    Raises:
        RecipeError: mixed precision is asked for without a GPU.
    """
    if problem.training.mixed_precision and problem.device.type == "cpu":
        raise RecipeError(
            f"Training.mixed_precision needs a GPU, and the training runs on {problem.device.type}.", "Leave it out."
        )
    module = build(problem.recipe, problem.training.seed).to(device=problem.device, dtype=problem.dtype)
    return module if problem.acts_in_training else module.eval()


def _optimizer(problem: Problem, trained: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's optimiser over the parameters; AdamW has two groups: those that are decayed, and the others."""
    for value in trained.values():
        value.grad = torch.zeros_like(value)  # so that a parameter without a gradient is decayed too
    training = problem.training
    rate, chosen = training.learning_rate, training.optimizer
    if isinstance(chosen, SGD):
        return torch.optim.SGD(trained.values(), lr=rate, momentum=chosen.momentum, nesterov=chosen.nesterov)
    decayed = [value for name, value in trained.items() if name not in training.undecayed]
    others = [value for name, value in trained.items() if name in training.undecayed]
    groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}]
    filled = [group for group in groups if group["params"]]
    return torch.optim.AdamW(filled, lr=rate, betas=chosen.betas, eps=chosen.eps)


def _decay_and_clip(problem: Problem, trained: Mapping[str, nn.Parameter]) -> None:
    """Add lambda w to the gradients, where decay is a part of them, and clip their common norm."""
    training = problem.training
    if isinstance(training.optimizer, SGD):
        for name, value in trained.items():
            if value.grad is not None and name not in training.undecayed:
                value.grad.add_(value.detach(), alpha=training.weight_decay)
    if training.clip is not None:
        nn.utils.clip_grad_norm_(trained.values(), training.clip)


def _parts(problem: Problem, here: Tensor, keys: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the places and keys of the samples that go through the model at once."""
    size = problem.training.batch_size or max(1, len(here))
    fewest = 2 if Ingredient.NORMALISATION in problem.ingredients else 1
    parts = zip(torch.split(here, size), torch.split(keys, size), strict=True)
    return [(places, passed) for places, passed in parts if len(places) >= fewest]


def _losses(problem: Problem, module: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
    """Return the data loss of each sample, (n,), of the augmented inputs through the model as it trains."""
    inputs = x.to(problem.dtype) if x.dtype.is_floating_point else x
    augment = problem.training.augment
    if augment is not None:
        inputs = augment(inputs.clone(), _Draws(below(keys, 0), problem.dtype))
        if not isinstance(inputs, Tensor) or len(inputs) != len(x):
            raise RecipeError("Training.augment did not return a row for each sample.", "Return (n, ...) inputs.")
    with _forward(problem, below(keys, 1)):
        outputs: Tensor = module(inputs)
    return problem.losses(outputs.to(problem.dtype), y)


@contextmanager
def _forward(problem: Problem, keys: Tensor) -> Iterator[None]:
    """Make the forward pass one in mixed precision, with keyed masks, as the training asks for."""
    with ExitStack() as stack:
        if problem.training.mixed_precision:
            stack.enter_context(torch.autocast(problem.device.type, dtype=torch.bfloat16))
        if problem.acts_in_training:
            # The fused kernels of attention draw their masks inside, where no key reaches.
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(Keyed(keys))
        yield


@dataclass
class _Draws:
    """What ``augment`` draws with: each call draws from another branch of each sample's key."""

    keys: Tensor
    dtype: torch.dtype
    calls: int = 0

    def __call__(self, count: int) -> Tensor:
        self.calls += 1
        return uniform(below(self.keys, self.calls), count, self.dtype)
