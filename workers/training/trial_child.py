"""The child process of a trial: ``python -m workers.training.trial_child``, an experiment on standard input as JSON.

It loads the libraries once. Each run is then made in a fork that has seen no recipe before: it loads the recipe,
confines itself, and calls ``train``. The answer on standard output is a JSON list with one verdict for each run.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.training.confined import Confinement, die_with_parent, leave_network

if TYPE_CHECKING:
    import torch

    from unlearning.model.own_code.own_training import Fitted
    from unlearning.model.problem import Problem
    from unlearning.recipe import Recipe
    from unlearning.types import Examples

MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class Experiment:
    """What to run. ``calls`` lists, for each call of ``train``, the indexes of its samples in the recipe.

    ``kernel``: leave the network before the recipe is loaded. ``overwrite``: give every sample that no call is handed
    the values of another before ``train`` is called. ``share`` is that of ``Run``.
    """

    recipes: str
    name: str
    digest: str
    device: str
    folder: str
    closed: tuple[str, ...]
    share: float
    kernel: bool
    runs: tuple[Mapping[str, Any], ...]


def main() -> None:
    """Carry out the experiment. What the recipe prints is thrown away: it may name people."""
    die_with_parent()
    experiment = Experiment(**json.load(sys.stdin))
    answer = os.dup(1)
    dropped = os.open(os.devnull, os.O_WRONLY)
    os.dup2(dropped, 1)
    # Loaded once, before the forks. torch.optim loads torch._dynamo at its first step, which takes two seconds.
    import torch._dynamo  # noqa: F401, PLC0415

    import unlearning.model.own_code.own_training  # noqa: F401, PLC0415
    import workers.runtime.recipes  # noqa: F401, PLC0415

    os.write(answer, json.dumps(verdicts(experiment)).encode())


def verdicts(experiment: Experiment) -> list[dict[str, Any]]:
    """Make each run in a fork of this process, which must have loaded no recipe yet."""
    return [_apart(experiment, run["calls"], run["overwrite"]) for run in experiment.runs]


def _apart(experiment: Experiment, calls: Sequence[Sequence[int]], overwrite: bool) -> dict[str, Any]:
    """Make one run in a fork and return its verdict; where the fork ended without one, how it ended."""
    with tempfile.TemporaryFile(dir=experiment.folder) as file:
        child = os.fork()
        if child == 0:
            die_with_parent()
            try:
                verdict = _verdict(experiment, calls, overwrite)
            except Exception as error:  # ours: the recipe's are in the verdict
                verdict = {"broken": "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__}
            file.write(json.dumps(verdict).encode())
            file.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        file.seek(0)
        text = file.read()
    found: dict[str, Any] = json.loads(text) if text else {"ended": os.waitstatus_to_exitcode(status)}
    return found


def _verdict(experiment: Experiment, calls: Sequence[Sequence[int]], overwrite: bool) -> dict[str, Any]:
    """Load the recipe, confine the process, train. The keys say what came of it."""
    from unlearning.model.problem import Problem, build  # noqa: PLC0415
    from unlearning.types import Refused  # noqa: PLC0415
    from workers.runtime import recipes  # noqa: PLC0415

    _tell_of_files()
    alone = experiment.kernel and leave_network()
    folder = Path(experiment.recipes)
    try:
        loaded = recipes.load(folder, experiment.name)
        recipe = loaded.recipe
        # train is on trial, not model(), which other checks look at: so it is called before any sample is overwritten.
        modules = iter([build(recipe, recipe.training.seed) for _ in range(len(calls) + 1)])
        problem = Problem(replace(recipe, model=lambda: next(modules)), experiment.device)
        handed = [_handed(recipe, call, problem.device) for call in calls]
    except Refused as error:
        return {"unloadable": error.what}
    except Exception as error:
        return {"unloadable": f"{type(error).__name__} was raised."}
    if loaded.digest != experiment.digest:
        return {"unloadable": "The recipe's file was changed meanwhile."}
    untouched = _overwrite(recipe, calls[0]) if overwrite else None
    rules = Confinement(
        Path(tempfile.mkdtemp(dir=experiment.folder)), [Path(each) for each in experiment.closed], folder.resolve()
    )
    rules.begin()
    found = _trained(problem, handed, experiment.share, folder)
    if rules.attempts:  # even where the recipe, or a library, went on without it
        first = rules.attempts[0]
        found = {"attempt": [first.what, first.place, first.value]}
    return {"untouched": untouched, "alone": alone, "files": len(rules.files)} | found


def _tell_of_files() -> None:
    """Raise Python's audit event where torch and safetensors write a file from C++ or Rust, which raise none."""
    import safetensors.torch  # noqa: PLC0415
    import torch  # noqa: PLC0415

    for module, name, keyword in ((torch, "save", "f"), (safetensors.torch, "save_file", "filename")):
        setattr(module, name, _told(getattr(module, name), keyword))


def _told(save: Callable[..., None], keyword: str) -> Callable[..., None]:
    """Return a function that saves its first argument in the file that is its second, or the one named ``keyword``."""

    @functools.wraps(save)
    def told(*args: Any, **named: Any) -> None:
        file = args[1] if len(args) > 1 else named.get(keyword)
        if isinstance(file, str | os.PathLike):
            sys.audit("open", os.fspath(file), "wb", os.O_WRONLY)
        save(*args, **named)

    return told


def _handed(recipe: Recipe, call: Sequence[int], device: torch.device) -> Examples:
    import torch  # noqa: PLC0415

    from unlearning.types import Examples  # noqa: PLC0415

    inputs, targets = next(iter(recipe.samples.rows.read([torch.tensor(call)])))
    positions = torch.arange(len(call), device=device)
    return Examples.of(positions, inputs.to(device), targets.to(device), ("",) * len(call))


def _trained(problem: Problem, handed: Sequence[Examples], share: float, folder: Path) -> dict[str, Any]:
    """Call ``train`` on each of these samples, and return the digests of what it left; or why there are none."""
    from unlearning.model.own_code.own_training import train_by_recipe  # noqa: PLC0415
    from unlearning.types import RecipeError  # noqa: PLC0415
    from workers.runtime.failures import may_pass, refusal  # noqa: PLC0415

    try:
        return {"prints": [_print(train_by_recipe(problem, examples, share=share)) for examples in handed]}
    except RecipeError as error:
        return {"refused": [error.what, error.hint]}
    except BaseException as error:  # SystemExit too
        if isinstance(error, Exception) and may_pass(error):
            return {"unloadable": f"{type(error).__name__} was raised, which may pass."}
        refused = refusal(error, folder)
        return {"refused": [refused.what, refused.hint]}


def _print(fitted: Fitted) -> dict[str, str]:
    """Return digests: of the weights, and of everything that the training left."""
    weights = hashlib.sha256(_bytes(fitted.weights))
    whole = weights.copy()
    whole.update(json.dumps(fitted.facts).encode())
    for name in sorted(fitted.tensors):
        whole.update(f"{name} {fitted.tensors[name].dtype} {tuple(fitted.tensors[name].shape)}".encode())
        whole.update(_bytes(fitted.tensors[name]))
    return {"weights": weights.hexdigest(), "whole": whole.hexdigest()}


def _bytes(tensor: torch.Tensor) -> bytes:
    import torch  # noqa: PLC0415

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _overwrite(recipe: Recipe, kept: Sequence[int]) -> str | None:
    """Give every sample but the kept ones the values of kept ones, in place; or return why that cannot be done.

    The tensors of the recipe share their storage with others, such as a table that ``train`` closes over: these change
    with them. A copy of the inputs elsewhere in the process changes too, where a row equals an overwritten one.
    """
    import torch  # noqa: PLC0415

    inputs, targets = recipe.samples.inputs, recipe.samples.targets
    if not isinstance(inputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return "they are a dataset, and where it keeps its rows is not known."
    if not all(_is_ours(each) for each in (inputs, targets)):
        return "they are not in this process's own memory: they are mapped from a file, for example."
    index = torch.tensor(kept)
    out = torch.ones(len(inputs), dtype=torch.bool)
    out[index] = False
    gone = out.nonzero().reshape(-1)
    source = index[torch.arange(len(gone)) % len(index)]
    before, rows, labels = inputs[gone].clone(), inputs[source].clone(), targets[source.roll(1)].clone()
    try:
        with torch.no_grad():
            inputs[gone], targets[gone] = rows, labels
            for copy in _copies(recipe, before, rows):
                found = _isin(copy, before).nonzero().reshape(-1)
                copy[found] = rows[torch.arange(len(found)) % len(rows)]
    except RuntimeError as error:
        return f"their tensor cannot be written to ({str(error).splitlines()[0]})."
    return None


def _copies(recipe: Recipe, *ours: torch.Tensor) -> Iterator[torch.Tensor]:
    """Find the tensors of this process whose rows are shaped like ours, but for the holdout and ours."""
    import torch  # noqa: PLC0415

    like, holdout = ours[0], recipe.holdout[0].untyped_storage().data_ptr()
    for each in gc.get_objects():
        if type(each) is not torch.Tensor or any(each is own for own in ours) or each.is_meta:
            continue
        alike = each.dtype == like.dtype and each.dim() == like.dim() and each.shape[1:] == like.shape[1:]
        if alike and each.numel() and _is_ours(each) and each.untyped_storage().data_ptr() != holdout:
            yield each


def _isin(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return which rows of the tensor, byte for byte, are among ``rows``: (n,) bool."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    def packed(value: torch.Tensor) -> Any:
        plain = value.detach().reshape(len(value), -1).contiguous().view(torch.uint8).numpy()
        return plain.view(np.dtype((np.void, plain.shape[1]))).reshape(-1)

    return torch.from_numpy(np.isin(packed(tensor), packed(rows)))


def _is_ours(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's memory may be written: private to this process. Linux shows it, others do not.

    A write into memory that is shared would change a file of the user's, one into memory that is read-only would end
    the process.
    """
    import torch  # noqa: PLC0415

    if not MAPS.exists() or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    at = tensor.untyped_storage().data_ptr()
    for line in MAPS.read_text().splitlines():
        span, permissions, *_ = line.split()
        low, high = (int(each, 16) for each in span.split("-"))
        if low <= at < high:
            return permissions.startswith("rw") and permissions.endswith("p")
    return False


if __name__ == "__main__":
    main()
