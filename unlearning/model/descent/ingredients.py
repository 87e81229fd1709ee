"""What a built-in training uses beyond plain gradient steps on the plain loss, and which part of it does so."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from torch import nn

from unlearning.settings import SGD, AdamW, Training
from unlearning.types import RecipeError, Refused


class Ingredient(StrEnum):
    """Something that makes a step more than a gradient step, or its gradient another than that of the loss."""

    MOMENTUM = "momentum"
    ADAMW = "AdamW"
    DROPOUT = "dropout"
    NORMALISATION = "batch normalisation"
    AUGMENT = "augment"
    MIXED_PRECISION = "mixed_precision"
    BALL = "radius"


ACTING = frozenset({Ingredient.DROPOUT, Ingredient.NORMALISATION})
"""parts of the model that act otherwise in training than in evaluation"""
INSTEAD: Mapping[Ingredient, str] = {
    Ingredient.MOMENTUM: "leave Training.optimizer out",
    Ingredient.ADAMW: "leave Training.optimizer out",
    Ingredient.DROPOUT: "call .eval() on it in model()",
    Ingredient.NORMALISATION: "call .eval() on it in model(), or use GroupNorm or LayerNorm",
    Ingredient.AUGMENT: "leave Training.augment out",
    Ingredient.MIXED_PRECISION: "leave Training.mixed_precision out",
    Ingredient.BALL: "leave Training.radius out",
}
"""what to change in a recipe so that the ingredient is not used"""


def ingredients_of(training: Training, module: nn.Module) -> dict[Ingredient, str]:
    """Return what the training uses, and where: a setting, or a part of ``module`` as ``model()`` leaves it.

    Raises:
        RecipeError: a part draws random numbers that cannot be keyed by sample, or normalises by the batch and keeps
            no running statistics; samples are clipped one by one, and a part acts otherwise in training.
    """
    used: dict[Ingredient, str] = {}
    for name, part in module.named_modules():
        label = f"{name or 'model'} ({type(part).__name__})"
        if not part.training:
            continue
        _require_keyed(label, part)
        if _drops(part):
            used.setdefault(Ingredient.DROPOUT, f"the dropout of {label}")
        if _normalises(part):
            _require_statistics(label, part)
            used.setdefault(Ingredient.NORMALISATION, f"batch normalisation in training mode, {label}")
    if used and training.sample_clip is not None:
        raise RecipeError(
            f"sample_clip takes the gradient of one sample at a time, and the model has {next(iter(used.values()))}.",
            "Use clip, or call .eval() on it in model().",
        )
    return used | _settings(training)


def require_plain(ingredients: Mapping[Ingredient, str], subject: str, otherwise: str) -> None:
    """Require a training of plain gradient steps alone, which ``subject`` needs. Raises Refused.

    ``ingredients`` are those of the training; ``otherwise`` says what to choose where one of them is to stay.
    """
    for used, where in ingredients.items():
        raise Refused(
            f"{subject} follows plain gradient steps, and this training has {where}.",
            f"{otherwise}, or {INSTEAD[used]}.",
        )


def _settings(training: Training) -> dict[Ingredient, str]:
    used: dict[Ingredient, str] = {}
    match training.optimizer:
        case AdamW():
            used[Ingredient.ADAMW] = "AdamW (Training.optimizer)"
        case SGD(momentum=momentum) if momentum > 0.0:
            used[Ingredient.MOMENTUM] = f"momentum {momentum:g} (Training.optimizer)"
    if training.augment is not None:
        used[Ingredient.AUGMENT] = "augmented inputs (Training.augment)"
    if training.mixed_precision:
        used[Ingredient.MIXED_PRECISION] = "mixed precision (Training.mixed_precision)"
    if training.radius is not None:
        used[Ingredient.BALL] = f"weights that are held in a ball of radius {training.radius:g} (Training.radius)"
    return used


def _drops(part: nn.Module) -> bool:
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    return isinstance(part, nn.MultiheadAttention) and part.dropout > 0


def _normalises(part: nn.Module) -> bool:
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return True
    return isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats


def _require_keyed(label: str, part: nn.Module) -> None:
    if (isinstance(part, nn.RNNBase) and part.dropout > 0) or isinstance(part, nn.RReLU):
        raise RecipeError(
            f"{label} draws random numbers that cannot be keyed by sample (dropout between its layers, or a slope).",
            "Put nn.Dropout between single layers, call .eval() on it, or give train.",
        )


def _require_statistics(label: str, part: nn.Module) -> None:
    if not getattr(part, "track_running_stats", True):
        raise RecipeError(
            f"{label} is batch normalisation without running statistics: every answer would depend on who else asks.",
            "Set track_running_stats, or use GroupNorm or LayerNorm.",
        )
