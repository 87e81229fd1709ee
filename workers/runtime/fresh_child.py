"""The server of fresh processes, ``python -m expunge.workers.runtime.fresh_child FD``, and what each of them does.

The server has loaded the libraries and runs no recipe, starts no thread and leaves the device alone: so it may be
forked. Each message of the worker brings two files in memory: an order with its samples, and an empty one for the
answer. The fork loads the recipe, confines itself, and trains. When it ends, all that it started ends too.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expunge.workers.runtime.confined import (
    Confinement,
    adopt_orphans,
    closed_in,
    end_children,
    isolate,
    links_in,
)
from expunge.workers.runtime.kernel import die_with_parent
from expunge.workers.runtime.work import children_cpu_seconds

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from unlearning.model.problem import Problem
    from unlearning.model.user_code.own_training import Fitted
    from unlearning.recipe import Recipe
    from unlearning.types import Examples, Progress

MAPS = Path("/proc/self/maps")
STOP = b"stop"
KNOWN = {
    "lightgbm": "lightgbm",
    "scikit-learn": "sklearn.ensemble",
    "xgboost": "xgboost",
    "xgboost-cpu": "xgboost",
}
"""packages that the server loads where a model is made by them, and what is imported of each"""
TEXT = "text"
"""the name under which a file of tensors holds JSON"""
PROGRESS_SECONDS = 0.5
FOREIGN_MEMORY = "They are not in this process's own memory: they are mapped from a file, for example."
UNKNOWN_ROWS = "They are a dataset, and where it keeps its rows is not known."


@dataclass(frozen=True)
class Assignment:
    """What a fresh process does.

    Args:
        recipes, name, digest, settings: the recipe, and what it must turn out to be.
        device, dtype: of the problem.
        part: the class of the part of a training, and its fields.
        folder: its home and temporary folder.
        closed: files and folders of the service.
        variables: of the environment, while the recipe is loaded.
        network: leave it the network until the recipe is loaded.
        folders: leave it the folders that lead out of a network namespace.
        kept: rows of the recipe's samples; all others are overwritten. None: all keep their values.
    """

    recipes: str
    name: str
    digest: str
    settings: str
    device: str
    dtype: str
    part: tuple[str, Mapping[str, Any]]
    folder: str
    closed: Sequence[str]
    variables: Mapping[str, str]
    network: bool
    folders: bool
    kept: Sequence[int] | None


def main(handle: int) -> None:
    """Fork a process for each order until the worker ends. What a recipe prints is thrown away: it may name people."""
    channel = socket.socket(fileno=handle)
    dropped = os.open(os.devnull, os.O_WRONLY)
    os.dup2(dropped, 1)
    os.dup2(dropped, 2)
    adopt_orphans()
    # Loaded once, before the forks: torch.optim loads torch._dynamo at its first step, which takes two seconds.
    # And what a library reads when it is loaded is no file that a training read.
    import torch._dynamo  # noqa: PLC0415

    import expunge.workers.runtime.recipes  # noqa: F401, PLC0415
    import unlearning.methods  # noqa: PLC0415
    import unlearning.model.fit  # noqa: F401, PLC0415

    torch.use_deterministic_algorithms(True, warn_only=True)
    gc.freeze()  # a fork looks for copies of samples among objects that came later, and shares the memory of these
    serve(channel)


def serve(channel: socket.socket) -> None:
    """Carry out orders, one at a time, until the other end is closed."""
    from unlearning.model.user_code.global_state import cards_are_open  # noqa: PLC0415

    while True:
        message, files, _, _ = socket.recv_fds(channel, 4096, 2)
        if not message:
            return
        if message == STOP:  # it crossed the end of what was to be stopped
            continue
        if cards_are_open():
            raise RuntimeError("the server of fresh processes has opened the device, and a fork could not use it")
        _load(json.loads(message))
        before = children_cpu_seconds()
        child = os.fork()
        if child == 0:
            os._exit(_first(channel, *files))
        for each in files:
            os.close(each)
        status = _ended(child, channel)
        channel.send(json.dumps({"ended": status, "cpu_seconds": children_cpu_seconds() - before}).encode())


def _load(packages: Sequence[str]) -> None:
    """Import what is known of these packages, once for all forks: lightgbm alone takes more than a second.

    No other package is imported: nothing of a recipe runs in the server.
    """
    wanted = [KNOWN[each] for each in packages if each in KNOWN]
    if all(each in sys.modules for each in wanted):
        return
    for each in wanted:
        with suppress(ImportError):
            importlib.import_module(each)
    gc.freeze()


def _ended(child: int, channel: socket.socket) -> int:
    """Wait for the end of the child, and of all that it started; kill it where the worker says so, or is gone."""
    watched = os.pidfd_open(child)
    ready, _, _ = select.select([watched, channel.fileno()], [], [])
    if watched not in ready:
        os.kill(child, signal.SIGKILL)
    os.close(watched)
    status = os.waitpid(child, 0)[1]
    end_children()
    return os.waitstatus_to_exitcode(status)


def _first(channel: socket.socket, given: int, answer: int) -> int:
    """Carry out the order, where the kernel allows it in its own namespaces; return the exit status."""
    die_with_parent()
    tensors, order, words = _opened(given)
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    needed = [order.folder, order.recipes, sys.prefix, sys.base_prefix, *filter(None, (*sys.path, *libraries))]
    closed, recipes = [Path(each) for each in order.closed], Path(order.recipes)
    isolation = isolate(
        closed, [*map(Path, needed)], linked=links_in(recipes), network=order.network, folders=order.folders
    )
    shut = isolation.no_network
    if isolation.apart:
        inner = os.fork()
        if inner:
            status = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            if status < 0:
                os.kill(os.getpid(), -status)
            return status
        die_with_parent()
        shut &= closed_in()
    try:
        found, left = _verdict(order, tensors, words, _telling(channel))
    except Exception as error:  # ours: the recipe's are in the verdict
        found, left = {"broken": "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__}, {}
    write(answer, left, found | {"no_network": shut})
    return 0


def _telling(channel: socket.socket) -> Progress:
    """Return what sends the progress to the worker, twice a second at most."""
    import time  # noqa: PLC0415

    told = time.monotonic()

    def tell(share: float) -> None:
        nonlocal told
        if time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            with suppress(BlockingIOError):
                channel.send(json.dumps({"progress": share}).encode(), socket.MSG_DONTWAIT)

    return tell


def write(handle: int, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> None:
    """Write tensors and JSON into a file in memory, as safetensors, never pickled."""
    import torch  # noqa: PLC0415
    from safetensors.torch import save  # noqa: PLC0415

    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        own = value.detach().cpu().contiguous()
        at = own.untyped_storage().data_ptr()
        plain[name] = own.clone() if at in seen else own  # two names of one memory are refused
        seen.add(at)
    plain[TEXT] = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
    data = memoryview(save(plain))
    while data:
        data = data[os.write(handle, data) :]


def read(handle: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write`` wrote: tensors in memory of this process's own, and JSON."""
    from safetensors.torch import load_file  # noqa: PLC0415

    tensors = load_file(f"/proc/self/fd/{handle}")
    return tensors, json.loads(tensors.pop(TEXT).numpy().tobytes())


def _opened(given: int) -> tuple[dict[str, Tensor], Assignment, dict[str, Any]]:
    tensors, words = read(given)
    return tensors, Assignment(**words.pop("order")), words


def _verdict(
    order: Assignment, tensors: dict[str, Tensor], words: Mapping[str, Any], progress: Progress
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Load the recipe, confine the process, train. The keys say what came of it."""
    import torch  # noqa: PLC0415

    from expunge.workers.runtime import recipes  # noqa: PLC0415
    from unlearning.model.problem import Problem, build  # noqa: PLC0415
    from unlearning.types import Refused  # noqa: PLC0415

    _tell_of_files()
    unsettled = _notice_unsettled()
    os.environ.update(order.variables)
    own = _notice_variables()
    folder = Path(order.recipes)
    try:
        loaded = recipes.load(folder, order.name)
        recipe = loaded.recipe
        # model() is not on trial, other checks look at it: so it is called before any sample is overwritten.
        built = [build(recipe, recipe.training.seed) for _ in range(2)]
        modules = iter(built)
        problem = Problem(replace(recipe, model=lambda: next(modules)), order.device, getattr(torch, order.dtype))
        examples = _handed(tensors, words, recipe.samples.rows, problem.device)
    except Refused as error:
        return {"unloadable": [error.what, error.hint]}, {}
    except Exception as error:
        return {"unloadable": [f"{type(error).__name__} was raised.", ""]}, {}
    if (loaded.digest, loaded.settings) != (order.digest, order.settings):
        return {"unloadable": ["The recipe was changed meanwhile.", "Try again."]}, {}
    models = (value for module in built for value in (*module.parameters(), *module.buffers()))
    ours = {_memory_of(each) for each in (*tensors.values(), *models)}
    facts: dict[str, Any] = {"held_out": _overwrite_holdout(recipe, examples)}
    if order.kept is not None:
        facts["untouched"] = _overwrite(recipe, order.kept, examples, ours)
    rules = Confinement(Path(order.folder), [Path(each) for each in order.closed], folder.resolve())
    sealed = rules.begin(own)
    found, left = _trained(problem, order, examples, (tensors, words), progress)
    if "refused" in found and rules.missed and not order.folders:
        found |= {"hidden": True}
    if rules.attempts:  # even where the recipe, or a library, went on without it
        first = rules.attempts[0]
        found = {"attempt": [first.what, first.place, first.value]}
    return {**facts, "sealed": sealed, "files": len(rules.files), "deterministic": not unsettled} | found, left


def _notice_unsettled() -> list[str]:
    """Return a list that gets an entry where an operator has no deterministic algorithm, or they are switched off."""
    import torch  # noqa: PLC0415

    found: list[str] = []
    shown, switch = warnings.showwarning, torch.use_deterministic_algorithms

    def show(message: Any, *rest: Any, **named: Any) -> None:
        if "deterministic" in str(message):
            found.append(str(message))
        shown(message, *rest, **named)

    @functools.wraps(switch)
    def told(mode: bool, *rest: Any, **named: Any) -> None:
        if not mode:
            found.append("switched off")
        switch(mode, *rest, **named)

    warnings.showwarning = show
    warnings.filterwarnings("always", message=".*deterministic")
    torch.use_deterministic_algorithms = told
    return found


def _notice_variables() -> set[str]:
    """Return a set that gets the name of each variable of the environment that is set from now on."""
    names: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.putenv":
            names.add(os.fsdecode(arguments[0]))

    sys.addaudithook(note)
    return names


def _handed(tensors: dict[str, Tensor], words: Mapping[str, Any], rows: Any, device: torch.device) -> Examples:
    """Return the samples that the worker read and compared; where they are not held, those rows of the recipe."""
    from unlearning.columns import Column  # noqa: PLC0415
    from unlearning.types import Examples, Tensors  # noqa: PLC0415

    people = Column(tensors["people"], words["people"])
    subjects = Column(tensors["subjects"], [tuple(each) for each in words["subjects"]])
    positions = tensors["positions"].to(device)
    if "index" in tensors:
        return Examples(positions, rows, people, subjects, tensors["index"])
    held = Tensors(tensors["inputs"].to(device), tensors["targets"].to(device))
    return Examples(positions, held, people, subjects)


def _trained(
    problem: Problem,
    order: Assignment,
    examples: Examples,
    given: tuple[dict[str, Tensor], Mapping[str, Any]],
    tell: Progress,
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Carry the part out, and return what it left; or why there is none."""
    from expunge.workers.runtime.failures import may_pass, refusal  # noqa: PLC0415
    from unlearning.methods.shards.head import MemberAnswers  # noqa: PLC0415
    from unlearning.methods.shards.merge import Merge  # noqa: PLC0415
    from unlearning.model.fit import Phase  # noqa: PLC0415
    from unlearning.model.training import Whole  # noqa: PLC0415
    from unlearning.model.user_code.own_training import Fitted  # noqa: PLC0415
    from unlearning.types import RecipeError, Refused  # noqa: PLC0415

    name, fields = order.part
    kind: Any = {each.__name__: each for each in (Phase, Whole, MemberAnswers, Merge)}[name]
    tensors, words = given
    start = None
    if "start" in tensors:
        start = Fitted(tensors["start"].to(problem.device), _below("start.", tensors), words["start"])
    try:
        fitted: Fitted = kind(**fields, **_below("part.", tensors)).carried_out(problem, examples, start, tell)
    except (RecipeError, Refused) as error:
        return {"refused": [error.what, error.hint]}, {}
    except BaseException as error:  # SystemExit too
        if isinstance(error, Exception) and may_pass(error):
            return {"passing": f"{type(error).__name__} was raised, which may pass."}, {}
        refused = refusal(error, Path(order.recipes))
        hidden = {"hidden": True} if isinstance(error, FileNotFoundError) and not order.folders else {}
        return {"refused": [refused.what, refused.hint]} | hidden, {}
    left = {f".{name}": value for name, value in fitted.tensors.items()}
    return {"left": fitted.facts}, {"weights": fitted.weights, **left}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _tell_of_files() -> None:
    """Raise Python's audit event where torch and safetensors open a file from C++ or Rust, which raise none.

    And where a file counts from an open folder, which Python's own event does not name.
    """
    import safetensors  # noqa: PLC0415
    import safetensors.torch  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from torch.jit._script import RecursiveScriptModule  # noqa: PLC0415

    reading, writing = ("rb", os.O_RDONLY), ("wb", os.O_WRONLY | os.O_CREAT)
    for owner, name, keyword, place, flags in (
        (torch, "save", "f", 1, writing),
        (torch, "load", "f", 0, reading),
        (torch, "from_file", "filename", 0, reading),
        (torch.jit, "save", "f", 1, writing),
        (torch.jit, "load", "f", 0, reading),
        (RecursiveScriptModule, "save", "f", 1, writing),
        (torch.UntypedStorage, "from_file", "filename", 0, reading),
        (safetensors.torch, "save_file", "filename", 1, writing),
        (safetensors.torch, "load_file", "filename", 0, reading),
        (safetensors.torch, "load_model", "filename", 1, reading),
        (safetensors.torch, "save_model", "filename", 1, writing),
        (safetensors, "safe_open", "filename", 0, reading),
    ):
        setattr(owner, name, _told(getattr(owner, name), keyword, place, flags))
    os.open = _counted_from_its_folder(os.open)


def _told(function: Callable[..., Any], keyword: str, place: int, flags: tuple[str, int]) -> Callable[..., Any]:
    """Return a function that first tells which file it opens: its argument at this place, or of this name."""

    @functools.wraps(function, updated=())
    def told(*args: Any, **named: Any) -> Any:
        file = args[place] if len(args) > place else named.get(keyword)
        if isinstance(file, str | os.PathLike):
            shared = flags[1] == os.O_RDONLY and (named.get("shared") or (len(args) > 1 and args[1] is True))
            sys.audit("open", os.fspath(file), flags[0], os.O_RDWR if shared else flags[1])
        return function(*args, **named)

    return told


def _counted_from_its_folder(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function, updated=())
    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and not isinstance(path, int):
            sys.audit("open", os.path.join(f"/proc/self/fd/{dir_fd}", os.fsdecode(path)), None, flags)  # noqa: PTH118
        return function(path, flags, mode, dir_fd=dir_fd)

    return opened


def _overwrite(recipe: Recipe, kept: Sequence[int], handed: Examples, ours: Set[int]) -> str | None:
    """Give every sample but the kept ones the values of handed ones, in place; or return why that cannot be done.

    A copy of the inputs elsewhere in the process changes too, where a row is that of a single sample which is
    overwritten: a row that several samples have is a category, and no copy. Not so in ``ours``, and in constants,
    which the certificate lists or the code writes out.
    """
    import torch  # noqa: PLC0415

    from unlearning.model.parts import constants_of  # noqa: PLC0415

    found = _memory_of_samples(recipe)
    if found is None:
        return UNKNOWN_ROWS
    if not all(map(_is_ours, found)):
        return FOREIGN_MEMORY
    inputs, targets = found
    out = torch.ones(len(inputs), dtype=torch.bool)
    out[torch.tensor(kept, dtype=torch.int64)] = False
    left_alone = {
        *ours,
        *map(_memory_of, constants_of(recipe)),
        _memory_of(inputs),
        _memory_of(recipe.holdout_tensors[0]),
    }
    before = inputs[out & _once(inputs)].clone()
    why = _replace(inputs, targets, out.nonzero().reshape(-1), handed)
    if why is None:
        left_alone.add(_memory_of(before))
        for copy in _copies(before, left_alone) if len(before) else ():
            found_rows = _isin(copy, before).nonzero().reshape(-1)
            with torch.no_grad():
                copy[found_rows] = _like(before, handed.inputs, torch.arange(len(found_rows)) % len(handed))
    return why


def _memory_of_samples(recipe: Recipe) -> tuple[Tensor, Tensor] | None:
    """Return the recipe's inputs and targets as tensors in the same memory; None where it is not known."""
    import torch  # noqa: PLC0415

    from unlearning.sources import NumpyRows  # noqa: PLC0415

    inputs, targets = recipe.samples.inputs, recipe.samples.targets
    if isinstance(inputs, NumpyRows) and inputs.inputs.flags.writeable and inputs.targets.flags.writeable:
        return torch.from_numpy(inputs.inputs), torch.from_numpy(inputs.targets)
    if isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor):
        return inputs, targets
    return None


def _overwrite_holdout(recipe: Recipe, handed: Examples) -> str | None:
    """Give the holdout the values of handed samples, in place, until this process ends; or return why it cannot be."""
    import torch  # noqa: PLC0415

    if _memory_of_samples(recipe) is None:
        return UNKNOWN_ROWS
    if not all(map(_is_ours, recipe.holdout_tensors)):
        return FOREIGN_MEMORY
    return _replace(*recipe.holdout_tensors, torch.arange(len(recipe.holdout_tensors[0])), handed)


def _replace(inputs: Tensor, targets: Tensor, gone: Tensor, handed: Examples) -> str | None:
    """Write the values of handed samples over these rows of two tensors; where their forms differ, zeros.

    Tensors that share their storage, such as a table that ``train`` closes over, change with them.
    """
    import torch  # noqa: PLC0415

    source = torch.arange(len(gone)) % len(handed)
    try:
        with torch.no_grad():
            rows, labels = (
                _like(inputs[gone], handed.inputs, source),
                _like(targets[gone], handed.targets, source.roll(1)),
            )
            inputs[gone], targets[gone] = rows, labels
    except RuntimeError as error:
        return f"Their tensor cannot be written to ({str(error).splitlines()[0]})."
    return None


def _like(before: Tensor, handed: Tensor, places: Tensor) -> Tensor:
    import torch  # noqa: PLC0415

    if handed.shape[1:] != before.shape[1:] or handed.dtype != before.dtype:
        return torch.zeros_like(before)
    return handed[places.to(handed.device)].to(before.device)


def _copies(like: Tensor, ours: Set[int]) -> Iterator[Tensor]:
    """Find the tensors of this process with rows shaped like these, but for those in memory of ours."""
    import torch  # noqa: PLC0415

    for each in gc.get_objects():
        if type(each) is not torch.Tensor or each.is_meta:
            continue
        alike = each.dtype == like.dtype and each.dim() == like.dim() and each.shape[1:] == like.shape[1:]
        if alike and each.numel() and _is_ours(each) and _memory_of(each) not in ours:
            yield each


def _memory_of(tensor: Tensor) -> int:
    """Return where the tensor's memory begins: the same for all that share it."""
    return tensor.untyped_storage().data_ptr()


def _once(tensor: Tensor) -> Tensor:
    """Return which rows of the tensor no other row equals, byte for byte: (n,) bool."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    _, places, counts = np.unique(_packed(tensor), return_inverse=True, return_counts=True)
    return torch.from_numpy(counts[places] == 1)


def _isin(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return which rows of the tensor, byte for byte, are among ``rows``: (n,) bool."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    return torch.from_numpy(np.isin(_packed(tensor), _packed(rows)))


def _packed(tensor: Tensor) -> Any:
    """Return each row as one value of so many bytes, (n,)."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    plain = tensor.detach().reshape(len(tensor), -1).contiguous().view(torch.uint8).numpy()
    return plain.view(np.dtype((np.void, plain.shape[1]))).reshape(-1)


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
    main(int(sys.argv[1]))
