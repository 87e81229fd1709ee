"""Retraining from scratch in float64, with plain modules and plain autograd: none of the project's formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from unlearning.recipe import Recipe
from unlearning.types import Examples

STEPS = 200


def of(recipe: Recipe, kept: Examples) -> tuple[Tensor, float]:
    """The retrained weights (d,) in the order of ``parameters()``, and how far they may be from the exact ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        module = recipe.model().double().eval()
    trained = [value for value in module.parameters() if value.requires_grad]
    x = kept.inputs.double() if kept.inputs.is_floating_point() else kept.inputs
    y = kept.targets

    def losses() -> Tensor:
        return sample_losses(str(recipe.loss), module(x), y)

    descend(recipe, trained, losses)
    if recipe.training.converge is None:
        return flat(trained), 1e-9 * (1.0 + float(flat(trained).norm()))
    left = minimise(recipe.training.weight_decay, trained, losses)
    return flat(trained), left / recipe.training.weight_decay


def sample_losses(loss: str, outputs: Tensor, y: Tensor) -> Tensor:
    """Each sample's loss, (n,), from its definition."""
    if loss == "cross_entropy":
        logs = outputs - torch.logsumexp(outputs, dim=1, keepdim=True)
        wanted = y.double() if y.is_floating_point() else torch.eye(outputs.shape[1], dtype=torch.float64)[y]
        return -(wanted * logs).sum(dim=1)
    if loss == "binary_logistic":
        z = outputs[:, 0]
        return torch.logaddexp(torch.zeros_like(z), z) - y.reshape(-1).double() * z
    if loss == "squared_error":
        return ((outputs - y.double().reshape(outputs.shape)) ** 2).sum(dim=1) / 2
    if outputs.shape[1] == 1:
        signs = torch.where(y.reshape(-1, 1) > 0, 1.0, -1.0).double()
    else:
        signs = 2.0 * torch.eye(outputs.shape[1], dtype=torch.float64)[y.long()] - 1.0
    return (torch.clamp(1.0 - signs * outputs, min=0.0) ** 2).sum(dim=1) / 2


def descend(recipe: Recipe, trained: Sequence[nn.Parameter], losses: Callable[[], Tensor]) -> None:
    """Full-batch gradient descent with the training's step sizes, clipping each sample's gradient where it does."""
    settings = recipe.training
    for step in range(settings.epochs):
        each = losses()
        if settings.sample_clip is None:
            gradient = torch.autograd.grad(each.mean(), trained)
        else:
            rows = [torch.autograd.grad(loss, trained, retain_graph=True) for loss in each]
            scales = [min(1.0, settings.sample_clip / max(float(flat(row).norm()), 1e-300)) for row in rows]
            gradient = tuple(
                torch.stack([scale * row[place] for scale, row in zip(scales, rows, strict=True)]).mean(dim=0)
                for place in range(len(trained))
            )
        rate = settings.learning_rate * settings.decay**step
        with torch.no_grad():
            for value, slope in zip(trained, gradient, strict=True):
                value -= rate * (slope + settings.weight_decay * value)


def minimise(decay: float, trained: Sequence[nn.Parameter], losses: Callable[[], Tensor]) -> float:
    """Newton's method with a dense Hessian and halved steps; returns the gradient's norm where it ends."""

    def objective() -> Tensor:
        return losses().mean() + decay / 2 * sum(((value**2).sum() for value in trained), torch.zeros(()))

    best = float("inf")
    for _ in range(STEPS):
        slope = flat(torch.autograd.grad(objective(), trained, create_graph=True))
        norm = float(slope.detach().norm())
        if norm >= best and norm < 1e-11:
            return norm
        best = min(best, norm)
        ones = torch.eye(len(slope), dtype=slope.dtype)
        parts = torch.autograd.grad(slope, trained, ones, is_grads_batched=True, materialize_grads=True)
        hessian = torch.cat([part.reshape(len(slope), -1) for part in parts], dim=1)
        step = torch.linalg.lstsq(hessian, slope.detach().unsqueeze(1)).solution[:, 0]
        _walk(trained, objective, slope.detach(), step)
    return best


def _walk(trained: Sequence[nn.Parameter], objective: Callable[[], Tensor], slope: Tensor, step: Tensor) -> None:
    start, before, length = flat(trained).clone(), float(objective().detach()), 1.0
    while length > 1e-6:
        put(trained, start - length * step)
        if float(objective().detach()) <= before - 1e-4 * length * float(slope @ step) + 1e-15 * abs(before):
            return
        length /= 2
    put(trained, start - step)


def put(trained: Sequence[nn.Parameter], w: Tensor) -> None:
    with torch.no_grad():
        for value, part in zip(trained, torch.split(w, [value.numel() for value in trained]), strict=True):
            value.copy_(part.reshape(value.shape))


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) if part.is_leaf else part.reshape(-1) for part in parts])
