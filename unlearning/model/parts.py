"""What a recipe brings along that no retraining changes: frozen tensors, buffers, a start that holds numbers; and the
numbers that its ``train``, ``loss`` and ``augment`` refer to, but for the samples and the holdout themselves.

Numbers do not tell which data they were fitted on. So every part that could hold them is either made of
zeros or ones alone, or declared public by the recipe, by name and digest, or it is refused under ``proved`` and
``exact``.

Checked here: the model is built under two seeds, and a trained tensor with two equal starts counts as fixed; and
``model()`` is run without gradients, where training by autograd fails. Not checked, as it is impossible: numbers in
``model()``'s own code, and a fit without autograd with a result that the seed changes throughout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from unlearning.accounting.certificate import Part
from unlearning.model.problem import build
from unlearning.reach import line_of, numbers_in
from unlearning.recipe import OwnTraining, Recipe
from unlearning.settings import SGD, AdamW, Schedule, Training
from unlearning.sources import NumpyRows
from unlearning.types import RecipeError, Refused

RARE = 1e-9
"""how often two independent draws of a start are taken for a fixed one"""
ROUNDING = 1e-5
"""relative: a fit that is computed twice may differ by this much"""
SHOWN = 8
"""names that a message lists"""
REFERENCE = "reference"
"""the kind of a part that ``train``, ``loss`` or ``augment`` refers to"""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
ANY_GLOBAL_HOOK: Callable[[], bool] = torch.nn.modules.module._has_any_global_hook
_REGISTERED = ("_parameters", "_buffers", "_modules")
COMPILED = ("torch._dynamo", "torch.export", "torch.fx", "torch.jit")
REPLACED = ("forward", "_call_impl", "_slow_forward", "_compiled_call_impl")
"""what an instance can replace of its class's"""


def parts_of(recipe: Recipe) -> tuple[Part, ...]:
    """List every fixed tensor of ``recipe.model()`` that holds more than zeros or ones, in order of name.

    Frozen parameters, buffers (also those outside the state_dict); tensors, arrays and rows of numbers that a part's
    attributes hold or its methods refer to (``reach``), or ``train``, ``loss`` or ``augment``; and the starts of
    trained parameters that two seeds give alike (of a model trained elsewhere the start is not used).

    Raises:
        RecipeError: ``public`` names something that the model lacks, or gives another digest than the tensor has.
    """
    module = build(recipe, recipe.training.seed)
    fixed = dict(_fixed(module)) | {name: (REFERENCE, found) for name, found in _referred(recipe)}
    if recipe.weights is None:
        other = dict(_trained(build(recipe, recipe.training.seed + 1)))
        starts = {name: start for name, start in _trained(module) if _alike(start, other.get(name))}
        fixed |= {name: ("start", start) for name, start in starts.items()}
    parts = [
        Part(name, kind, value.numel(), digest_of(value), public=False)
        for name, (kind, value) in sorted(fixed.items())
        if not _trivial(value)
    ]
    return _declared(parts, recipe.public)


def require_declared(recipe: Recipe, parts: Sequence[Part]) -> None:
    """Raise Refused where a part is not declared public, with the line to paste; and where ``model()`` trains."""
    missing = [part for part in parts if not part.public]
    if missing:
        first = missing[0]
        place = _place(recipe, first.name) if first.kind == REFERENCE else ""
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Refused(
            f"The model brings along numbers that the recipe does not declare public: {_WORDS[first.kind]} "
            f"{first.name!r} ({first.size:,} numbers{place and f', {place}'}){more}. If they were fitted on people who "
            "may ask to be forgotten, no retraining forgets them.",
            f"If no person who may ask is in them, add to ul.Recipe: {to_paste(parts)}. Otherwise "
            f"{_OTHERWISE[first.kind == REFERENCE]}",
        )
    try:
        with torch.no_grad():
            build(recipe, recipe.training.seed)
    except RuntimeError as error:
        raise Refused(
            f"model() fails when it is run without gradients ({type(error).__name__}): it trains something itself.",
            "Train it elsewhere on public data, load the result in model(), and declare it in ul.Recipe(public=...).",
        ) from None


def digest_of(tensor: Tensor) -> str:
    """Return sha256, in hex, of the tensor's dtype, shape, a line feed, and numbers in C order, little-endian."""
    plain = tensor.detach().cpu().contiguous()
    head = f"{plain.dtype} {tuple(plain.shape)}\n".encode()
    return hashlib.sha256(head + plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def digest_below(parts: Sequence[Part]) -> str:
    """Return sha256, in hex, of several parts: of a line ``name digest`` for each, in order of name."""
    lines = sorted(f"{part.name} {part.digest}\n" for part in parts)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def to_paste(parts: Sequence[Part]) -> str:
    """Write the argument ``public={...}`` that declares these parts: one entry for each child of the model."""
    children: dict[str, list[Part]] = {}
    for part in parts:
        children.setdefault(part.name.partition(".")[0], []).append(part)
    lines = (_entry(child, below) for child, below in children.items())
    return f"public={{{', '.join(lines)}}}"


def _entry(child: str, below: Sequence[Part]) -> str:
    name, digest = (below[0].name, below[0].digest) if len(below) == 1 else (child, digest_below(below))
    return f'"{name}": "{digest}"'


def _declared(parts: Sequence[Part], public: Mapping[str, str]) -> tuple[Part, ...]:
    """Mark the parts that ``public`` covers. A name covers a tensor, or all parts below a child."""
    covered: set[str] = set()
    for name, digest in public.items():
        below = [part for part in parts if part.name == name or part.name.startswith(f"{name}.")]
        if not below:
            raise RecipeError(
                f"public names {name!r}, which is no fixed part of the model.",
                f"The fixed parts are: {', '.join(part.name for part in parts[:SHOWN]) or 'none'}.",
            )
        found = below[0].digest if below[0].name == name else digest_below(below)
        if digest != found:
            raise RecipeError(
                f"public says that {name!r} has the digest {digest[:64]}; it has {found}.",
                "Look whether it is what you meant to declare, and correct the digest.",
            )
        covered.update(part.name for part in below)
    return tuple(Part(part.name, part.kind, part.size, part.digest, part.name in covered) for part in parts)


_WORDS = {
    "start": "the start of the trained",
    "frozen": "the frozen parameter",
    "buffer": "the buffer",
    "attribute": "the attribute",
    "state": "the state_dict's entry",
    REFERENCE: "what its code refers to as",
}
_OTHERWISE = (
    "fit them on public data, or train them with the model.",
    "compute them inside train, from run.inputs and run.targets.",
)


def _own_code(recipe: Recipe) -> dict[str, object]:
    """Return the recipe's own functions, by the names that their numbers are listed under."""
    return {"train": recipe.train, "loss": recipe.loss, "augment": recipe.training.augment}


def _referred(recipe: Recipe) -> Iterator[tuple[str, Tensor]]:
    """Find what the recipe's own functions refer to, but for its samples and its holdout.

    Those are no part of the model: the trial overwrites them.
    """
    return (found for found in _read_by_name(recipe, "") if not _is_given(recipe, found[1]))


def constants_of(recipe: Recipe) -> Iterator[Tensor]:
    """Yield the numbers that the recipe's own functions refer to and that are listed as parts, or are its code."""
    return (tensor for _, tensor in _read_by_name(recipe, None) if not _is_given(recipe, tensor))


def samples_read(recipe: Recipe) -> list[str]:
    """Return where the recipe's own functions refer to its samples or its holdout: names, each with its line."""
    found = (name for name, tensor in _read_by_name(recipe, None) if _is_given(recipe, tensor))
    return [f"{name} ({_place(recipe, name)})" for name in found]


def _read_by_name(recipe: Recipe, source: str | None) -> Iterator[tuple[str, Tensor]]:
    for name, function in _own_code(recipe).items():
        yield from ((key, tensor.detach()) for key, tensor in numbers_in(name, function, {}, source))


def _is_given(recipe: Recipe, tensor: Tensor) -> bool:
    """Tell whether a tensor lies in the memory of the recipe's samples, or of its holdout."""
    rows = recipe.samples.inputs
    arrays = (rows.inputs, rows.targets) if isinstance(rows, NumpyRows) else ()
    given = [each for each in (rows, recipe.samples.targets, *recipe.holdout_tensors) if isinstance(each, Tensor)]
    memory = [_span(each) for each in given]
    memory += [(start, start + each.nbytes) for each in arrays for start in [each.__array_interface__["data"][0]]]
    at = tensor.data_ptr() if tensor.layout is torch.strided else 0
    return any(first <= at < last for first, last in memory)


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return where the memory begins and ends that the tensor is a view of."""
    memory = tensor.untyped_storage()
    return memory.data_ptr(), memory.data_ptr() + memory.nbytes()


def _place(recipe: Recipe, name: str) -> str:
    """Return the line that reads what a part of the kind ``REFERENCE`` is called; empty where it is no function's."""
    root, _, path = name.partition(".")
    return line_of(_own_code(recipe)[root], path)


def _trained(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, value.detach()) for name, value in module.named_parameters() if value.requires_grad)


def _fixed(module: nn.Module) -> Iterator[tuple[str, tuple[str, Tensor]]]:
    """Return name -> (kind, tensor) of everything that training does not change."""
    for name, value in module.named_parameters():
        if not value.requires_grad:
            yield name, ("frozen", value.detach())
    for name, buffer in module.named_buffers():
        yield name, ("buffer", buffer.detach())
    known = {id(value) for value in (*module.parameters(), *module.buffers())}
    for kind, key, tensor in _elsewhere(module):
        if id(tensor) not in known:
            yield key, (kind, tensor.detach())


def _elsewhere(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Find kind, name and tensor of what every part's attributes and methods hold or refer to, and of what a hook or
    get_extra_state saves with them.
    """
    seen: dict[int, object] = {id(part): part for part in module.modules()}
    for path, child in module.named_modules():
        for name, attribute in _attributes(child):
            for key, tensor in numbers_in(name, attribute, seen):
                yield "attribute", f"{path}.{key}".lstrip("."), tensor
    for name, value in module.state_dict(keep_vars=True).items():
        for key, tensor in numbers_in(name, value, seen):
            yield "state", key, tensor


def _attributes(part: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the attributes and methods of a part and of its classes, but for those of torch, and for constructors: what
    these leave behind is among the attributes.
    """
    yield from ((name, value) for name, value in vars(part).items() if name not in _REGISTERED)
    for kind in type(part).__mro__:
        if kind is not object and not kind.__module__.startswith("torch."):
            yield from ((name, value) for name, value in vars(kind).items() if name != "__init__")


def _trivial(value: Tensor) -> bool:
    """Tell whether these are zeros alone, or ones alone. Another number, even a single one, may be a mean."""
    return bool((value == 0).all()) or bool((value == 1).all())


def _alike(start: Tensor, other: Tensor | None) -> bool:
    """Tell whether two seeds give one start, but for rounding, or two that correlate more than independent draws do."""
    if other is None or other.shape != start.shape:
        return False
    one, two = start.double().reshape(-1), other.double().reshape(-1)
    if float((one - two).norm()) <= ROUNDING * float(one.norm()):
        return True
    return abs(_correlation(one, two)) > _least_unusual(start.numel())


def _correlation(one: Tensor, two: Tensor) -> float:
    one, two = one - one.mean(), two - two.mean()
    scale = float(one.norm() * two.norm())
    return float(one @ two) / scale if scale > 0 else 0.0


def _least_unusual(count: int) -> float:
    """Return the c that two independent directions of ``count`` numbers correlate above with probability RARE.

    From the tail of the correlation of independent normal numbers, (1 - c^2)^((count - 2) / 2), up to a factor below 1.
    """
    return math.sqrt(1 - RARE ** (2 / (count - 2))) if count > 2 else math.inf


def trains_by_own_code(recipe: Recipe) -> bool:
    """Tell whether the recipe's ``train``, ``loss`` or ``augment`` is a function from the recipe."""
    return recipe.train is not None or callable(recipe.loss) or recipe.training.augment is not None


def runs_own_code(recipe: Recipe) -> bool:
    """Tell whether a training may run code that is neither torch's nor ours: a function, or a part of the model."""
    training = recipe.training
    settings = (type(training), type(training.optimizer), type(training.schedule))
    plain = settings[0] in (Training, OwnTraining) and settings[1] in (SGD, AdamW) and settings[2] is Schedule
    return trains_by_own_code(recipe) or not plain or not _torchs_own(build(recipe, training.seed))


def _torchs_own(module: nn.Module) -> bool:
    """Tell whether the module is made of torch's own parts, as torch makes them, without a function of others."""
    return (
        not ANY_GLOBAL_HOOK()
        and all(_torchs(type(part)) and plain_part(part) for part in module.modules())
        and all(_plain_parameter(value) for value in module.parameters())
        and all(type(value) is Tensor for value in module.buffers())
        and all(_torchs(each) for part in module.modules() for each in vars(part).values() if callable(each))
    )


def _torchs(value: object) -> bool:
    """Tell whether a class or function is torch's; those that C++ defines name no module.

    A part that torch made of other code, as TorchScript and traced graphs are, is not.
    """
    name = getattr(value, "__module__", None) or "torch"
    return name.partition(".")[0] in ("torch", "builtins") and not name.startswith(COMPILED)


def untouched(module: nn.Module) -> bool:
    """Tell whether every part does what its class says when it is called, and every parameter is separate."""
    parameters = list(module.parameters())
    return (
        not ANY_GLOBAL_HOOK()
        and all(plain_part(part) for part in module.modules())
        and all(_plain_parameter(value) for value in parameters)
        and len(list(module.named_parameters(remove_duplicate=False))) == len(parameters)
    )


def plain_part(part: nn.Module) -> bool:
    """Tell whether a part has no hook, no replaced method and no parametrisation."""
    own = vars(part)
    return (
        not any(own.get(name) for name in (*HOOKS, *REPLACED))
        and own.get("forward") is None
        and not is_parametrized(part)
    )


def _plain_parameter(value: nn.Parameter) -> bool:
    hooks = (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None))
    return type(value) is nn.Parameter and not any(hooks)
