"""Compare a linear head's closed form, or a tangent's, with its model, before anything is claimed with it.

``affine_of`` reads a model's structure. What a part does when it is called is code: it can read the trained
weights, draw random numbers or look at the rest of its batch. So numbers are compared. In float64, at weights w drawn
at random and on a few samples, the closed form must give what automatic differentiation gives through the recipe's own
module and loss: each sample's loss, each sample's gradient, and a Hessian product, to ``TOLERANCE`` of their size. A
sample's outputs must not depend on the other samples of its batch.

``require_agreement`` does this at registration, and on fewer samples at every update that the recipe is run for, on a
module built for it and called as any other code calls it.
``require_agreement_at`` does it at every update, at the very weights of the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unlearning.model.linear_head import Affine, hessian
from unlearning.model.problem import Problem, build
from unlearning.model.tangent import affine_of
from unlearning.types import Examples, RecipeError, Refused

TOLERANCE = 1e-9
"""relative"""
NOISE = 1e-13
"""a difference below this many times ``Curve.rounding`` is rounding: about a thousand times what a sum needs"""
SCALES = (0.3, 1.0, 3.0)
"""of random weights: the typical size of a score"""
ROWS = 64
FEW = 4
ELEMENTS = 2**22
"""numbers in the gradients of the compared samples (32 MiB)"""
CHUNK = 512

HINT = (
    "A head may have no part that reads the trained weights, draws random numbers or mixes the samples of a batch. "
    "Correct the recipe, or use retrain without Training.converge."
)


def require_agreement(problem: Problem, examples: Examples, generator: torch.Generator, count: int = ROWS) -> None:
    """Compare the closed form with a module that the recipe builds for this, at weights from ``generator``.

    ``problem`` is float64, ``generator`` is on the CPU. Losses are compared on every sample, gradients and a Hessian
    product on up to ``count``. A model that is neither a linear head nor a tangent passes: it has no closed form.

    Raises:
        Refused: they disagree, the objective is not convex for these targets, or the module cannot be run in float64.
    """
    model = affine_of(problem)
    if model is None or not len(examples):
        return
    for _, targets in examples.blocks():
        require_convex_targets(model, targets)
    with _refusing_what_does_not_run():
        module = build(problem.recipe, problem.training.seed).eval().to(device=problem.device, dtype=problem.dtype)
        _require_not_rounded(problem, module)
        own = _Own(module, _trained(problem, module))
        some = _sample(problem, examples, count, generator)
        size = _size(model, some[0])
        for scale in SCALES:
            w = _drawn(problem, generator) * (scale / size)
            _set(own.leaves, w)
            _compare(model, own, w, some, _drawn(problem, generator))
        _compare_losses(model, w, examples, module)


def _require_not_rounded(problem: Problem, module: nn.Module) -> None:
    """Require that the problem has the constants that the recipe gives its module, to the last bit. Raises Refused."""
    slots = {slot.name for slot in problem.layout}
    given = dict((*module.named_parameters(), *module.named_buffers()))
    for name, value in (*problem.module.named_parameters(), *problem.module.named_buffers()):
        if name in slots or name not in given or not value.dtype.is_floating_point:
            continue
        if not torch.equal(value, given[name]) and torch.equal(value.float(), given[name].float()):
            raise Refused(
                f"The model's tensor {name!r} is given in float64, and kept in float32: it would be rounded.",
                "Give it in float32, and compute with it as it is then: torch.tensor(values, dtype=torch.float32).",
            )


def require_own_weights(problem: Problem, examples: Examples, generator: torch.Generator) -> None:
    """Check that a module with its parameters set to w is the model that is trained, in ``problem``'s precision.

    Training hands w to the module's parts. A part that keeps another reference to a parameter reads the old one, so
    that other weights would be published than those that the outputs came from.

    Raises:
        Refused: the outputs differ, at random weights on up to ``FEW`` samples.
    """
    module = build(problem.recipe, problem.training.seed).eval().to(device=problem.device, dtype=problem.dtype)
    w = 0.1 * _drawn(problem, generator)
    if any(slot.buffer for slot in problem.layout):
        w = w.abs()  # w holds running variances too, which are never negative
    _set(_trained(problem, module), w)
    x, _ = _sample(problem, examples, FEW, generator)
    with torch.no_grad(), _refusing_what_does_not_run():
        handed, own = problem.outputs(w, x), module(x)
    close = torch.finfo(problem.dtype).eps ** 0.5
    if not torch.allclose(handed, own, rtol=close, atol=close * float(own.abs().max()), equal_nan=True):
        raise Refused(
            "The model's outputs do not follow from its parameters: with the same weights they differ.",
            "Remove random numbers from forward, and references to parameters that a part keeps in a list or tuple.",
        )


def require_agreement_at(model: Affine, w: Tensor, examples: Examples) -> None:
    """Compare the closed form with the problem's own module at float64 weights w (d,), on up to ``FEW`` samples.

    Raises:
        Refused: they disagree, or the module cannot be run in float64.
    """
    problem = model.problem
    generator = torch.Generator().manual_seed(problem.training.seed)
    with _refusing_what_does_not_run():
        leaf = w.detach().clone().requires_grad_()
        some = _sample(problem, examples, FEW, generator)
        own = _Own(lambda x: problem.outputs(leaf, x), [leaf])
        _compare(model, own, w, some, _drawn(problem, generator))


def require_convex_targets(model: Affine, targets: Tensor) -> None:
    """Check that the loss is convex for these targets, and that the closed form's rounding covers them.

    Soft labels of cross_entropy need not sum to 1: the closed form carries their sum.

    Raises:
        Refused: a soft label below 0, a class that the model does not have, a target of binary_logistic outside [0, 1],
            or soft labels of another shape.
    """
    targets, _ = model.problem.apart(targets)
    loss, classes = str(model.problem.recipe.loss), model.outputs
    if loss == "cross_entropy" and targets.dtype.is_floating_point:
        if targets.dim() != 2 or targets.shape[1] != classes:
            raise Refused(
                f"The soft labels have shape {tuple(targets.shape)}; the model has {classes} outputs.",
                f"Give (n, {classes}) shares, or classes as whole numbers.",
            )
        if bool((targets < 0).any()):
            raise Refused("A soft label is below 0: the loss is not known to be convex.", "Give shares of 0 or more.")
    elif loss == "cross_entropy":
        _require_range(targets, 0, classes - 1, "A class", f"Number the classes from 0 to {classes - 1}.")
    elif loss == "binary_logistic":
        _require_range(targets, 0, 1, "A target of binary_logistic", "Give 0 or 1, or a probability.")


def _require_range(targets: Tensor, least: int, most: int, which: str, hint: str) -> None:
    if bool(((targets < least) | (targets > most)).any()):
        raise Refused(f"{which} lies outside {least} to {most}.", hint)


@dataclass(frozen=True)
class _Own:
    """The model itself, as it is called: inputs (n, ...) to outputs. ``leaves`` together are w, in its order."""

    outputs: Callable[[Tensor], Tensor]
    leaves: Sequence[Tensor]

    def gradient(self, value: Tensor, *, graph: bool = False) -> Tensor:
        """Return d value / d w, (d,)."""
        parts = torch.autograd.grad(value, self.leaves, retain_graph=True, create_graph=graph, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])


def _compare(model: Affine, own: _Own, w: Tensor, some: tuple[Tensor, Tensor], v: Tensor) -> None:
    """Raise Refused where the two ways differ at w, for a few samples and the direction v (d,)."""
    x, y = some
    features = model.features(x)
    scores, lengths = model.on(features), model.lengths(features)
    z = scores.at(w)
    noise = NOISE * model.curve.rounding(z, y)
    outputs = own.outputs(x)
    alone = torch.cat([own.outputs(row) for row in torch.split(x, 1)])
    _require_close("outputs for a sample alone", alone.flatten(1), outputs.flatten(1), noise)
    losses = model.problem.losses(outputs, y)
    _require_close("losses", model.problem.losses(z, y).unsqueeze(1), losses.unsqueeze(1), noise)
    each = zip(torch.split(features, 1), torch.split(y, 1), strict=True)
    closed = torch.stack([model.on(single).summed(w, target).gradient for single, target in each])
    gradients = torch.stack([own.gradient(loss) for loss in losses])
    _require_close("gradients", closed, gradients, noise * lengths)
    product = own.gradient(own.gradient(losses.mean(), graph=True).dot(v)).unsqueeze(0)
    floor = (noise * lengths.square()).mean().reshape(1) * v.norm()
    _require_close("Hessian products", hessian(model.curve, scores, w, y)(v).unsqueeze(0), product, floor)


def _compare_losses(model: Affine, w: Tensor, examples: Examples, outputs: Callable[[Tensor], Tensor]) -> None:
    """Compare the losses of all samples at w, a chunk of samples at a time."""
    for x, y in (
        chunk
        for block in examples.blocks()
        for chunk in zip(*(torch.split(each, CHUNK) for each in block), strict=True)
    ):
        z = model.on(model.features(x)).at(w)
        with torch.no_grad():
            own = model.problem.losses(outputs(_cast(model.problem, x)), y)
        closed = model.problem.losses(z, y)
        _require_close("losses", closed.unsqueeze(1), own.unsqueeze(1), NOISE * model.curve.rounding(z, y))


def _require_close(what: str, closed: Tensor, own: Tensor, floor: Tensor) -> None:
    """Require that rows of (n, m) agree to ``TOLERANCE`` of the longer one, or to ``floor`` (n,)."""
    if closed.shape == own.shape:
        size = torch.maximum(closed.norm(dim=1), own.norm(dim=1))
        if bool(((closed - own).norm(dim=1) <= TOLERANCE * size + floor).all()):
            return
    raise Refused(
        f"The model looks like a linear head or a tangent and is none: its {what} are not those of the closed form.",
        HINT,
    )


def _sample(problem: Problem, examples: Examples, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Choose inputs and targets of a few samples at random, fewer where their gradients are long."""
    count = max(2, min(most, ELEMENTS // problem.dimension))
    inputs, targets = examples.pick(torch.randperm(len(examples), generator=generator)[:count])
    return _cast(problem, inputs), targets


def _cast(problem: Problem, x: Tensor) -> Tensor:
    return x.to(problem.dtype) if x.dtype.is_floating_point else x


def _size(model: Affine, x: Tensor) -> float:
    size = float(model.lengths(model.features(x)).square().mean().sqrt())
    return size if 0.0 < size < float("inf") else 1.0


def _drawn(problem: Problem, generator: torch.Generator) -> Tensor:
    return torch.randn(problem.dimension, generator=generator, dtype=problem.dtype).to(problem.device)


def _trained(problem: Problem, module: nn.Module) -> list[Tensor]:
    """Return the module's own parameters and buffers that w holds, in its order."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return [named[slot.name] for slot in problem.layout]


def _set(leaves: Sequence[Tensor], w: Tensor) -> None:
    with torch.no_grad():
        for leaf, part in zip(leaves, torch.split(w, [leaf.numel() for leaf in leaves]), strict=True):
            leaf.copy_(part.reshape(leaf.shape))


@contextmanager
def _refusing_what_does_not_run() -> Iterator[None]:
    """Turn what the module, its loss and their derivatives raise into a refusal: they are the user's code."""
    try:
        yield
    except (Refused, RecipeError):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
        raise Refused(
            f"The model or its loss cannot be run on its own samples: {type(error).__name__}.",
            "Call recipe().model() on a few samples, in float64 where it is a linear head, to see why.",
        ) from error
