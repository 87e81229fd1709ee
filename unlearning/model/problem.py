"""The training problem over one flat weight vector: outputs, losses, gradients, and the way to named tensors."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from unlearning.artefact import Artefact, Bytes
from unlearning.model.descent.ingredients import ACTING, ingredients_of
from unlearning.model.global_state import settings_kept, torch_draws_from
from unlearning.model.imports import load_constants
from unlearning.model.metrics import METRICS
from unlearning.recipe import Recipe, SampleLoss
from unlearning.types import Examples, Progress, RecipeError

if TYPE_CHECKING:
    from unlearning.model.descent.fitted import Fitted


@dataclass(frozen=True)
class Slot:
    """Where one trained parameter, or a buffer, lies in the flat vector: ``w[start:stop].reshape(shape)``."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    buffer: bool = False


class Fresh(Protocol):
    """Carries out a part of a training in a separate process, which has run none of the recipe's code before.

    ``part`` is a ``Phase``, ``Whole`` or ``Merge``. What the recipe's code keeps is not in the next.
    """

    def __call__(self, part: object, examples: Examples, start: Fitted | None, progress: Progress) -> Fitted: ...

    def announce(self, chains: Sequence[Sequence[tuple[object, Examples]]]) -> None:
        """Hear of what will be asked for: each chain holds parts in their order, which start from the one before."""


class Problem:
    """The objective ``(1/n) sum_i l_i(w) + (1/2) sum_j decay_j w_j^2`` of a recipe, over w (d,) in ``dtype``.

    Parameters that do not require a gradient, and buffers, are constants. Where a part of the model acts otherwise in
    training (dropout, batch normalisation), w holds the saved buffers too, integers among them as numbers of ``dtype``:
    all that a training may change. Outputs, losses and gradients are those of the model in evaluation, with buffers as
    constants. Weight decay covers every trained parameter except those that ``Training.undecayed`` names.

    Of an ``Artefact`` w holds the bytes of the model, (any length,) uint8: it has outputs, and no gradient.

    ``ingredients`` says what the built-in training uses beyond plain gradient steps. ``fresh`` carries out the
    trainings of this problem; None: this process does.

    Raises:
        RecipeError: random numbers that cannot be keyed, no trainable parameter, an unknown undecayed parameter.
    """

    def __init__(self, recipe: Recipe, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.recipe = recipe
        self.training = recipe.training
        self.fresh: Fresh | None = None
        self.measured_by: Callable[[Tensor], float | None] | None = None
        """what says how good weights (d,) are where no holdout is held here"""
        self.device = torch.device(device)
        module = build(recipe, recipe.training.seed)
        self.artefact = module.artefact if isinstance(module, Bytes) else None
        self.dtype = dtype if self.artefact is None else torch.uint8
        self.ingredients = ingredients_of(recipe.training, module)
        self.acts_in_training = bool(self.ingredients.keys() & ACTING)
        self.module = module.eval().to(device=self.device, dtype=dtype if self.artefact is None else None)
        self.layout = _layout(self.module, buffers=self.acts_in_training)
        self.dimension = self.layout[-1].stop
        self.trained = next((slot.start for slot in self.layout if slot.buffer), self.dimension)
        """how many of the d numbers are trained parameters; the buffers lie behind them"""
        self._loss = _loss_of(recipe.loss)
        self.metric = metric_of(recipe)
        self.decay = self._decay_of()
        """(d,): lambda for decayed coordinates, 0 for the others"""

    def double(self) -> Problem:
        """Return the same problem in float64."""
        return self.cast(torch.float64)

    def cast(self, dtype: torch.dtype) -> Problem:
        """Return the same problem with weights in ``dtype``."""
        if dtype == self.dtype:
            return self
        other = copy.copy(self)
        other.dtype = dtype
        # By value: torch cannot deep-copy the storages of a device that is an extension.
        values = {id(value): value.detach().clone() for value in self.module.buffers()}
        values |= {
            id(value): nn.Parameter(value.detach().clone(), value.requires_grad) for value in self.module.parameters()
        }
        other.module = copy.deepcopy(self.module, values).to(dtype=dtype)
        other.decay = other._decay_of()
        return other

    def initial(self) -> Tensor:
        """Return w_0 (d,): what the model's constructor gives under the training's seed. It depends on no data."""
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        return self.flatten({name: value.detach() for name, value in named})

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the model's outputs (n, ...) at weights w (d,) for inputs (n, ...)."""
        return self._applied(self._unflatten(w), x)

    def _applied(self, trained: Mapping[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = functional_call(self.module, dict(trained), (self.fed(x),))
        return result

    def fed(self, values: Tensor) -> Tensor:
        """Return real inputs or targets in the weights' dtype; bytes are given them as they are."""
        cast = values.dtype.is_floating_point and self.dtype.is_floating_point
        return values.to(self.dtype) if cast else values

    def sample_losses(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the data loss of each sample, (n,); without weight decay. It can be differentiated twice."""
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels of attention have no second derivative
            return self.losses(self.outputs(w, x), y)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the data loss of each sample, (n,), from the model's outputs (n, ...); times its weight, if any."""
        targets, weight = self.apart(y)
        losses = self._loss(outputs, self.fed(targets))
        return losses if weight is None else losses * weight.to(losses.dtype)

    def apart(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return targets (n, ...) and weights (n,) of training samples, if targets carry them (``sources.weighted``).

        There are no weights for a recipe without any, and for the targets of its holdout: those have its shape.
        """
        like = self.recipe.holdout_tensors[1]
        if self.recipe.samples.weight is None or y.shape[1:] == like.shape[1:]:
            return y, None
        targets = y[:, 1:].reshape(len(y), *like.shape[1:])
        return targets if like.dtype.is_floating_point else targets.to(like.dtype), y[:, 0]

    def mean_loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean data loss, a scalar; without weight decay."""
        return self.sample_losses(w, x, y).mean()

    def gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient (d,) of the mean data loss; without weight decay."""
        # Plain autograd over the tensors, and not torch.func, whose fixed cost a small network feels at every step.
        parts = self._unflatten(w)
        leaves = {slot.name: parts[slot.name].detach().requires_grad_(not slot.buffer) for slot in self.layout}
        trained = [leaf for leaf in leaves.values() if leaf.requires_grad]
        with torch.enable_grad():
            loss = self.losses(self._applied(leaves, x), y).mean()
            slopes = iter(torch.autograd.grad(loss, trained, materialize_grads=True))
        found = (next(slopes) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in leaves.values())
        return torch.cat([slope.reshape(-1) for slope in found])

    def sample_gradients(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each sample's data loss, (n, d); without weight decay."""

        def single(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.sample_losses(w, x.unsqueeze(0), y.unsqueeze(0))[0]

        result: Tensor = vmap(grad(single), in_dims=(None, 0, 0))(w, x, y)
        return result.detach()

    def accuracy(self, w: Tensor, x: Tensor, y: Tensor) -> float | None:
        """Return what the recipe's metric gives at weights w (d,); None: it has none, so nothing is measured."""
        if self.measured_by is not None:
            return self.measured_by(w)
        with torch.no_grad():
            return self.score(self.outputs(w, x), y)

    def score(self, outputs: Tensor, y: Tensor) -> float | None:
        """Return what the recipe's metric gives for outputs (n, ...) and targets (n, ...); each sample counts once.

        Where the recipe groups its holdout, these are the first n rows of it.
        """
        if self.metric is None:
            return None
        groups = self.recipe.holdout_groups
        grouped = () if groups is None else (groups[: len(outputs)].to(outputs.device),)
        found = self.metric(outputs, self.apart(y)[0], *grouped)
        return None if found is None else float(found)

    def tensors(self, w: Tensor) -> dict[str, Tensor]:
        """Return everything a checkpoint holds: trained parameters from w (in w's dtype), constants and buffers."""
        return {name: value.clone() for name, value in self.views(w).items()}

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Return ``tensors`` without a copy: they are parts of w and of the model, to be read only."""
        trained = self._unflatten(w)
        # Tied parameters have one slot and several names.
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        slot_of = {id(value): name for name, value in named if name in trained}
        state = self.module.state_dict(keep_vars=True)
        return {name: self._view(trained, slot_of.get(id(value)), value) for name, value in state.items()}

    def _view(self, trained: Mapping[str, Tensor], slot: str | None, value: Tensor) -> Tensor:
        if slot is None:
            return value.detach()
        own = trained[slot].detach()
        return own if value.dtype.is_floating_point else own.round().to(value.dtype)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the weight vector (d,) from tensors by name. Names that are not trained parameters are ignored.

        Raises:
            RecipeError: a parameter is missing, has another shape, or holds NaN or infinity.
        """
        if self.artefact is not None:
            return tensors[Artefact.HELD].detach().to(self.device)
        return torch.cat([self._slot_values(slot, tensors) for slot in self.layout])

    def _slot_values(self, slot: Slot, tensors: Mapping[str, Tensor]) -> Tensor:
        if slot.name not in tensors:
            raise RecipeError(f"The weights lack {slot.name!r}.", "Give every trained parameter of the model.")
        value = tensors[slot.name]
        if tuple(value.shape) != slot.shape:
            raise RecipeError(
                f"The weights' {slot.name!r} has shape {tuple(value.shape)}; the model's has {slot.shape}.",
                "Give weights of this model.",
            )
        if not bool(torch.isfinite(value).all()):
            raise RecipeError(f"The weights' {slot.name!r} holds NaN or infinity.", "Give finite weights.")
        return value.detach().to(device=self.device, dtype=self.dtype).reshape(-1)

    def _unflatten(self, w: Tensor) -> dict[str, Tensor]:
        if self.artefact is not None:
            return {Artefact.HELD: w}
        # One split, not a slice for each: the gradient of a slice is a zero vector as long as w.
        parts = torch.split(w, [slot.stop - slot.start for slot in self.layout])
        shaped = {slot: part.reshape(slot.shape) for slot, part in zip(self.layout, parts, strict=True)}
        return {slot.name: part.detach() if slot.buffer else part for slot, part in shaped.items()}

    def _decay_of(self) -> Tensor:
        names = {slot.name for slot in self.layout if not slot.buffer}
        unknown = [name for name in self.training.undecayed if name not in names]
        if unknown:
            raise RecipeError(f"undecayed names {unknown}, which the model lacks.", f"Choose from {sorted(names)}.")
        decay = torch.full((self.dimension,), self.training.weight_decay, dtype=self.dtype, device=self.device)
        for slot in self.layout:
            if slot.buffer or slot.name in self.training.undecayed:
                decay[slot.start : slot.stop] = 0.0
        return decay


def build(recipe: Recipe, seed: int) -> nn.Module:
    """Build the module by ``recipe.model()`` under ``seed``; trained elsewhere, with its constants and buffers.

    Raises:
        RecipeError: it is no module, or the recipe's weights are not those of its state_dict.
    """
    # A module's constructor draws from torch's global generator and from nothing else that we could hand it:
    # the state is set for this call and put back afterwards.
    with settings_kept(), torch_draws_from(seed):
        module = recipe.model()
    if not isinstance(module, nn.Module):
        fix = "Return a torch.nn.Module; of another library's model return its file, ul.Published({'model.txt': ...})."
        raise RecipeError(f"model() returned a {type(module).__name__}.", fix)
    if recipe.weights is not None:
        load_constants(module, recipe.weights)
    return module


def _layout(module: nn.Module, *, buffers: bool) -> tuple[Slot, ...]:
    """Lay out the trained parameters, and after them the saved buffers where a training may change them."""
    if isinstance(module, Bytes):
        return (Slot(Artefact.HELD, (-1,), 0, 0, buffer=True),)
    saved = module.state_dict(keep_vars=True)
    named: list[tuple[str, Tensor]] = [each for each in module.named_parameters() if each[1].requires_grad]
    if not named:
        raise RecipeError("The model has no trainable parameter.", "Leave at least one with requires_grad.")
    parameters = len(named)
    if buffers:
        named += [(name, value) for name, value in module.named_buffers() if name in saved]
    slots: list[Slot] = []
    start = 0
    for place, (name, value) in enumerate(named):
        slots.append(Slot(name, tuple(value.shape), start, start + value.numel(), place >= parameters))
        start += value.numel()
    return tuple(slots)


def _loss_of(loss: str | SampleLoss) -> SampleLoss:
    return _NAMED[loss] if isinstance(loss, str) else loss


METRIC_NAME = re.compile(r"[A-Za-z]\w{0,39}")
OWN_METRIC = "metric"
"""what a function is called that has no name of its own, such as a lambda, or that of another metric"""


def metric_of(recipe: Recipe) -> Callable[..., float | None] | None:
    """Return what measures the holdout: the recipe's metric, or that of a named loss; None for a callable loss.

    A contrastive or a ranking loss has outputs that are no classes: their accuracy would mean nothing.
    """
    if callable(recipe.metric):
        return recipe.metric
    name = metric_name(recipe)
    return None if name is None else METRICS[name]


def metric_name(recipe: Recipe) -> str | None:
    """Return the name of what measures the holdout, of a function its own; None where nothing is measured."""
    if callable(recipe.metric):
        name = getattr(recipe.metric, "__name__", type(recipe.metric).__name__)
        return name if METRIC_NAME.fullmatch(name) and name not in METRICS else OWN_METRIC
    usual = {"squared_error": "r2"}.get(recipe.loss, "accuracy") if isinstance(recipe.loss, str) else None
    return recipe.metric or usual


def _columns(outputs: Tensor) -> int:
    return 1 if outputs.dim() == 1 else outputs[0].numel()


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _binary_logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the logistic loss: targets are 0 or 1; one output for each sample."""
    scores = outputs.reshape(-1)
    # Not F.softplus: above 20 torch takes it for the identity, and its gradient is 2e-9 off.
    return -F.logsigmoid(-scores) - scores * targets.reshape(-1).to(scores.dtype)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (1/2) ||output - target||^2."""
    difference = outputs - targets.to(outputs.dtype).reshape(outputs.shape)
    return 0.5 * difference.reshape(difference.shape[0], -1).square().sum(dim=1)


def _squared_hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (1/2) max(0, 1 - s f)^2, s = 1 for a positive target, else -1; several outputs: one against the rest."""
    if _columns(outputs) == 1:
        scores = outputs.reshape(outputs.shape[0], 1)
        positive = targets.reshape(-1, 1) > 0
    else:
        scores = outputs
        positive = torch.arange(outputs.shape[1], device=outputs.device) == targets.reshape(-1, 1)
    signs = torch.where(positive, 1.0, -1.0).to(scores.dtype)
    return 0.5 * F.relu(1.0 - signs * scores).square().sum(dim=1)


_NAMED: dict[str, SampleLoss] = {
    "cross_entropy": _cross_entropy,
    "binary_logistic": _binary_logistic,
    "squared_error": _squared_error,
    "squared_hinge": _squared_hinge,
}
