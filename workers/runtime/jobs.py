"""What a world does: it says what its recipe declares, trains on rows that it is handed, or merges members.

This runs beside the recipe's code. What it answers is read as coming from there.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from expunge.workers.runtime.world import Files, Score
from unlearning.rows import (
    PublicFile,
    Published,
    Rows,
    RunParameter,
    Source,
    TrainingRun,
    rows_from_bytes,
    source_to_json,
)
from unlearning.types import RecipeError

Listing = Sequence[tuple[str, int]]
"""files in a row: the name and the size of each"""
Outcome = tuple[Mapping[str, Any], bytes, Score | None]
ROWS, ASIDE, START, MEMBER = "rows ", "aside ", "start", "member "
"""how the files of a part begin, before the parameter or the number that they are of"""


def declare(module: ModuleType, _files: Files, _order: Mapping[str, Any]) -> Outcome:
    """Answer what the recipe's parameters ask for."""
    defaults = {name: each.default for name, each in inspect.signature(_recipe(module)).parameters.items()}
    sources = {name: source_to_json(default) for name, default in defaults.items() if isinstance(default, Source)}
    public = {
        name: [default.path, default.sha256] for name, default in defaults.items() if isinstance(default, PublicFile)
    }
    runs = [name for name, default in defaults.items() if isinstance(default, RunParameter)]
    unknown = [name for name, default in defaults.items() if default is inspect.Parameter.empty]
    if unknown or not sources:
        what = f"recipe() has a parameter {unknown[0]!r} without a source." if unknown else "recipe() has no source."
        raise RecipeError(what, "Write `def recipe(rows=ul.table('people.csv', person='person'))`.")
    merges = callable(getattr(module, "merge", None))
    return {"sources": sources, "public": public, "run": runs[:1], "merges": merges}, b"", None


def train(module: ModuleType, files: Files, order: Mapping[str, Any]) -> Outcome:
    """Call the recipe on the rows; answer with its files, and with what scores them by other rows."""
    given: dict[str, Any] = {name: rows_from_bytes(files[f"{ROWS}{name}"]) for name in order["sources"]}
    given |= {name: Path(path) for name, path in order["public"].items()}
    start = None if order["start"] is None else unpack(order["start"], files[START])
    given |= dict.fromkeys(order["run"], TrainingRun(start))
    published = _published("recipe", _recipe(module)(**given))

    def score(aside: Files) -> Mapping[str, Any]:
        rows = {name.removeprefix(ASIDE): rows_from_bytes(data) for name, data in aside.items()}
        return {"score": _score(published, rows)}

    listing, data = pack(published.files)
    return {"files": listing}, data, None if published.score is None else score


def merge(module: ModuleType, files: Files, order: Mapping[str, Any]) -> Outcome:
    """Call the module's ``merge`` on the files of each member."""
    members = [unpack(listing, files[f"{MEMBER}{number}"]) for number, listing in enumerate(order["members"])]
    published = _published("merge", module.merge(members))
    listing, data = pack(published.files)
    return {"files": listing}, data, None


JOBS = {"declare": declare, "train": train, "merge": merge}


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


def _recipe(module: ModuleType) -> Any:
    function = getattr(module, "recipe", None)
    if not callable(function):
        raise RecipeError("The module does not define recipe().", "Define `def recipe(rows=ul.table(...))`.")
    return function


def _published(name: str, value: object) -> Published:
    if not isinstance(value, Published):
        raise RecipeError(
            f"{name}() returned a {type(value).__name__}.",
            "Return ul.Published({'model.txt': ...}); a recipe with rows trains by itself.",
        )
    return value


def _score(published: Published, aside: Mapping[str, Rows]) -> float | None:
    """Return the score of a model by the rows kept apart; of several sources they are named as the parameters are."""
    score: Any = published.score
    if score is None:
        return None
    value = score(*aside.values()) if len(aside) == 1 else score(**aside)
    return None if value is None else float(value)
