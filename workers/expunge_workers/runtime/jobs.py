"""What a world does: it says what its recipe declares, trains on rows that it is handed, or merges members.

This runs beside the recipe's code. What it answers is read as coming from there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors.torch import save

from expunge_workers.runtime.model_tasks import carry_out, trained
from expunge_workers.runtime.points import RESUMED, OwnPoints
from expunge_workers.runtime.world import POINT, Files, Score
from unlearning.recipe import Recipe
from unlearning.rows import (
    MappedBefore,
    PublicFile,
    Published,
    ReaderSource,
    Rows,
    RunParameter,
    Source,
    TrainingRun,
    WeightsFile,
    block_to_bytes,
    blocks_from_bytes,
    map_block,
    rows_from_bytes,
    source_to_json,
    to_arrow,
)
from unlearning.types import RecipeError

Listing = Sequence[tuple[str, int]]
"""files in a row: the name and the size of each"""
Outcome = tuple[Mapping[str, Any], bytes, Score | None]
ROWS, ASIDE, START, MEMBER = "rows ", "aside ", "start", "member "
"""how the files of a part begin, before the parameter or the number that they are of"""
MAPPED, ON_DISK = "mapped ", "on disk "
"""how those begin that belong to a file of rows, before ROWS or ASIDE"""
HOW_TO_PORT = """Let the service read the data, and compute from the rows that it hands over:
    def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2)) -> ul.Published:
        table = rows.pandas()
        return ul.Published({"model.txt": ...}, score=lambda aside: ...)"""
BLOCK = "block.npy"
"""the file that a function of one block leaves"""


def declare(module: ModuleType, _files: Files, _order: Mapping[str, Any]) -> Outcome:
    """Answer what the recipe's parameters ask for."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(_recipe(module)).parameters.items()}
    sources = {name: source_to_json(default) for name, default in defaults.items() if isinstance(default, Source)}
    public = {
        name: [default.path, default.sha256]
        for name, default in defaults.items()
        if isinstance(default, PublicFile) and not isinstance(default, WeightsFile)
    }
    weights = {
        name: [default.path, default.sha256] for name, default in defaults.items() if isinstance(default, WeightsFile)
    }
    runs = {name: default for name, default in defaults.items() if isinstance(default, RunParameter)}
    unknown = [name for name, default in defaults.items() if default is inspect.Parameter.empty]
    if unknown:
        what = f"recipe() has a parameter {unknown[0]!r} without a source."
        raise RecipeError(what, "Write `def recipe(rows=ul.table('people.csv', person='person'))`.")
    if not sources:
        raise RecipeError("recipe() asks for no rows, and opens nothing by itself.", HOW_TO_PORT)
    for source in (default for default in defaults.values() if isinstance(default, ReaderSource)):
        _require_own(module, source.call, "reader")
    merges = callable(getattr(module, "merge", None))
    facts = {"sources": sources, "public": public, "run": [*runs][:1], "merges": merges}
    run = next(iter(runs.values()), RunParameter())
    maps = {
        name: {function.__name__: _files_of(module, function, public) for function in default.functions}
        for name, default in defaults.items()
        if isinstance(default, Source) and default.functions
    }
    more = {"maps": maps, "weights": weights} | {
        name: getattr(run, name)
        for name in ("processes", "checkpoint_seconds")
        if getattr(run, name) != getattr(RunParameter(), name)
    }
    return facts | {name: value for name, value in more.items() if value}, b"", None


def train(module: ModuleType, files: Files, order: Mapping[str, Any]) -> Outcome:
    """Call the recipe on the rows, and train its model where it did not itself; answer with the files of the model, and
    with what scores them by other rows.
    """
    made = _called(module, files, order)
    if order["rank"]:  # the first process answers for all
        return {}, b"", None
    if isinstance(made, Recipe) and order["processes"] > 1:
        what = f"ul.run(processes={order['processes']}) is of a recipe that trains by itself; this one leaves it to us."
        raise RecipeError(what, "Return ul.Published of the trained model, or leave processes out.")
    published = trained(made, order["device"]) if isinstance(made, Recipe) else _published("recipe", made)
    brings_holdout = isinstance(made, Recipe) and not callable(made.holdout)

    def score(aside: Files) -> Mapping[str, Any]:
        apart = _rows_apart(module, aside, order)
        return {"score": _score(published, apart) if apart or brings_holdout else None}

    listing, data = pack(published.files)
    return {"files": listing}, data, None if published.score is None else score


def model(module: ModuleType, files: Files, order: Mapping[str, Any]) -> Outcome:
    """Call the recipe on the rows, and do with its model what the order asks for (``model_tasks``)."""
    recipe = _called(module, files, order)
    if not isinstance(recipe, Recipe):
        return {"returned": type(recipe).__name__}, b"", None
    facts, tensors = carry_out(recipe, files, order, _rows_apart(module, files, order))
    return facts, save(tensors), None


def map_rows(module: ModuleType, files: Files, order: Mapping[str, Any]) -> Outcome:
    """Call a function of the module on one block of rows."""
    public = {name: Path(path) for name, path in order["public"].items()}
    array = map_block(
        getattr(module, order["function"]), rows_from_bytes(files[ROWS], folder=Path.cwd() / "block"), public
    )
    return {}, block_to_bytes(array), None


def read(module: ModuleType, _files: Files, order: Mapping[str, Any]) -> Outcome:
    """Call the module's own reader of a file or folder, which sees everybody's rows; answer with these."""
    return {}, to_arrow(getattr(module, order["function"])(Path(order["path"])), order["function"]), None


def merge(module: ModuleType, files: Files, order: Mapping[str, Any]) -> Outcome:
    """Call the module's ``merge`` on the files of each member."""
    members = [unpack(listing, files[f"{MEMBER}{number}"]) for number, listing in enumerate(order["members"])]
    published = _published("merge", module.merge(members))
    listing, data = pack(published.files)
    return {"files": listing}, data, None


JOBS = {"declare": declare, "train": train, "model": model, "map": map_rows, "merge": merge, "read": read}


def pack(files: Mapping[str, bytes | str]) -> tuple[list[tuple[str, int]], bytes]:
    """Put files in a row, ordered by name."""
    contents = {name: content if isinstance(content, bytes) else content.encode() for name, content in files.items()}
    return [(name, len(contents[name])) for name in sorted(contents)], b"".join(
        contents[name] for name in sorted(contents)
    )


def unpack(listing: Listing, data: memoryview | bytes) -> dict[str, bytes]:
    """Return the files by name. Raises ValueError where the sizes are not those of ``data``."""
    files, start = {}, 0
    for name, size in listing:
        files[name] = bytes(data[start : start + size])
        start += size
    if start != len(data) or any(size < 0 for _, size in listing):
        raise ValueError("the sizes of the files are not those of the data")
    return files


def _called(module: ModuleType, files: Files, order: Mapping[str, Any]) -> Any:
    """Return what the recipe makes of the rows, the public files and the part before."""
    given: dict[str, Any] = {name: _rows(module, files, order, ROWS, name) for name in order["sources"]}
    given |= {name: Path(path) for name, path in order["public"].items()}
    given |= {name: None if path is None else Path(path) for name, path in order["weights"].items()}
    start = None if order["start"] is None else unpack(order["start"], files[START])
    rank = order["rank"]
    points = (
        OwnPoints(files[f"{POINT}{rank}"], files.get(f"{RESUMED}{rank}"), order["checkpoint_seconds"])
        if f"{POINT}{rank}" in files
        else None
    )
    given |= dict.fromkeys(order["run"], TrainingRun(start, rank, order["processes"], points))
    return _recipe(module)(**given)


def _rows_apart(module: ModuleType, files: Files, order: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the rows of the people who are kept apart, by source; none where the files hold none."""
    names = [name.removeprefix(ASIDE) for name in files if name.startswith(ASIDE)]
    return {name: _rows(module, files, order, ASIDE, name) for name in names}


def _recipe(module: ModuleType) -> Any:
    function = getattr(module, "recipe", None)
    if not callable(function):
        raise RecipeError("The module does not define recipe().", "Define `def recipe(rows=ul.table(...))`.")
    return function


def _files_of(module: ModuleType, function: Callable[..., Any], public: Mapping[str, Any]) -> list[str]:
    """Return the public files that a function takes beside its rows, by the names of the recipe's parameters."""
    name = function.__name__
    _require_own(module, function, "map")
    _, *others = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    files = [other.name for other in others if other.default is other.empty and other.kind in by_name]
    unknown = [file for file in files if file not in public]
    if unknown:
        what = f"{name}() takes {unknown[0]!r}, and recipe() declares no public file of that name."
        raise RecipeError(what, f"Say it in recipe(): `{unknown[0]}=ul.public('path', sha256=...)`.")
    return files


def _require_own(module: ModuleType, function: Any, role: str) -> None:
    """Raise RecipeError where the module has no such function under its name: another process could not call it."""
    name = getattr(function, "__name__", repr(function))
    if getattr(module, name, None) is not function:
        what = f"{role} names {name}(), which the recipe's module does not have under that name."
        raise RecipeError(what, f"Write `def {name}(...): ...` in the module, outside of other functions.")


def _rows(module: ModuleType, files: Files, order: Mapping[str, Any], kind: str, name: str) -> Rows:
    """Return the rows of a source, with what functions gave for them before."""
    functions = order["maps"].get(name, {})

    def read(people: Any) -> dict[Any, MappedBefore]:
        before = {}
        for function_name, public in functions.items():
            function = getattr(module, function_name)
            values = blocks_from_bytes(function, files[f"{MAPPED}{kind}{name} {function_name}"], people)
            before[function] = MappedBefore(values, {file: Path(order["public"][file]) for file in public})
        return before

    folder, disk = Path.cwd() / f"{kind.strip()}-{name}", files.get(f"{ON_DISK}{kind}{name}")
    return rows_from_bytes(files[f"{kind}{name}"], read, folder, disk)


def _published(name: str, value: object) -> Published:
    if not isinstance(value, Published):
        raise RecipeError(
            f"{name}() returned a {type(value).__name__}.",
            "Return ul.Published({'model.txt': ...}), or ul.Recipe(...) for a model that the service trains.",
        )
    return value


def _score(published: Published, aside: Mapping[str, Rows]) -> float | None:
    """Return the score of a model by the rows kept apart; of several sources they are named as the parameters are."""
    score: Any = published.score
    if score is None:
        return None
    value = score(*aside.values()) if len(aside) == 1 else score(**aside)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RecipeError(f"score() gave a {type(value).__name__}.", "Give one number: greater is better.") from None
