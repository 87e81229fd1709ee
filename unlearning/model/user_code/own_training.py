"""Run a recipe's own training function, for the whole training or for one phase of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unlearning.model.problem import Problem, build
from unlearning.model.user_code.global_state import draws_from, settings_kept
from unlearning.recipe import PEOPLE, SEEDS, Run
from unlearning.types import Examples, Json, Progress, RecipeError, silent

WHOLE = "all"
"""the name of the only phase of a training that is made in one piece"""


@dataclass(frozen=True)
class Fitted:
    """What a phase leaves: the weights (d,), and what its optimiser needs to go on, as ``packed`` writes it."""

    weights: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Json = None


def train_by_recipe(
    problem: Problem,
    examples: Examples,
    phase: str = WHOLE,
    share: float = 1.0,
    *,
    start: Fitted | None = None,
    last: bool = True,
    progress: Progress = silent,
) -> Fitted:
    """Call ``recipe.train`` on ``examples``, from ``start`` or else from the model's constructor.

    The result depends on the arguments alone: the random states of torch, numpy and Python are set before the call,
    from the recipe's seed and the phase's name, and put back afterwards; so are torch's settings.

    Raises:
        RecipeError: no sample is given, an artefact is no bytes or of no known format, the weights are not finite or
            of another model, or the function returns something other than dicts, lists, tensors, numbers and text. What
            the function itself raises is not caught.
    """
    recipe = problem.recipe
    if recipe.train is None:
        raise ValueError("The recipe has no train function.")
    if len(examples) == 0:
        raise RecipeError("No sample is left to train on.", "Retire the model instead.")
    dtype = problem.dtype if problem.artefact is None else None
    module = build(recipe, problem.training.seed).to(device=problem.device, dtype=dtype)
    if start is not None:
        module.load_state_dict(problem.tensors(start.weights))
    before = None if start is None or start.facts is None else unpacked(start.tensors, start.facts)
    seed = seed_of(problem, phase)
    people = _numbered(problem, examples)
    inputs, (targets, weights) = problem.fed(examples.inputs).clone(), problem.apart(examples.targets.clone())
    small = seed % SEEDS
    run = Run(module.train(), inputs, targets, phase, share, small, before, progress, people, last, weights)
    with settings_kept(), draws_from(seed):
        left = recipe.train(run)
    progress(1.0)
    if problem.artefact is not None:
        return Fitted(problem.artefact.tensor(left).to(problem.device))
    trained = module.state_dict()
    extra = [repr(name) for name in sorted(set(trained) - set(problem.module.state_dict()))]
    if extra:
        raise RecipeError(
            f"train left {', '.join(extra[:3])} in the model, which model() does not give.",
            "Train the model's own parameters in place; add what it needs in model().",
        )
    return Fitted(problem.flatten(trained), *packed(left))


def seed_of(problem: Problem, *words: str) -> int:
    """Return a seed below 2^63 that follows from the training's seed and ``words``."""
    text = "\n".join((str(problem.training.seed), *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _numbered(problem: Problem, examples: Examples) -> Tensor:
    """Return the person of each sample, (n,) int64 as ``Run.people`` has it, by the seed and the names of people here.

    In the service a name is a digest that is keyed by the pepper, so no outsider can compute a number.
    """
    numbers = examples.subjects.each(lambda names: max(seed_of(problem, "person", name) % PEOPLE for name in names))
    return numbers.to(problem.device)


def packed(value: object) -> tuple[dict[str, Tensor], Json]:
    """Take a nested value apart into tensors by name and JSON: dicts, lists, tuples, tensors, numbers, text, None.

    Raises:
        RecipeError: it holds something else. It is never pickled.
    """
    tensors: dict[str, Tensor] = {}

    def pack(value: object, path: str) -> Json:
        match value:
            case Tensor() if value.layout is torch.strided and not (value.is_meta or value.is_quantized):
                name = str(len(tensors))
                tensors[name] = value.detach().cpu().clone()
                return {"tensor": name}
            case dict():
                return {"dict": [[pack(key, path), pack(each, f"{path}[{key!r}]")] for key, each in value.items()]}
            case list() | tuple():
                parts: list[Json] = [pack(each, f"{path}[{place}]") for place, each in enumerate(value)]
                return {"list" if isinstance(value, list) else "tuple": parts}
            case None | bool() | int() | str():
                return {"plain": value}
            case float():
                return {"float": value.hex()}
        raise RecipeError(
            f"train returned a {type(value).__name__} at {path}.",
            "Return dicts, lists, tuples, dense tensors, numbers and text: an optimizer's state_dict() for example.",
        )

    return tensors, pack(value, "the state")


def unpacked(tensors: Mapping[str, Tensor], facts: Any) -> Any:
    """Return the value that ``packed`` took apart."""
    ((kind, held),) = facts.items()
    match kind:
        case "tensor":
            return tensors[held].clone()
        case "dict":
            return {unpacked(tensors, key): unpacked(tensors, each) for key, each in held}
        case "list":
            return [unpacked(tensors, each) for each in held]
        case "tuple":
            return tuple(unpacked(tensors, each) for each in held)
        case "float":
            return float.fromhex(held)
    return held
