"""Count what one update runs through: modules, functions and nested calls of service, workers and unlearning.

Run ``python -m benchmarks.path_of_an_update`` in the root of a checkout. A real worker in this process publishes one
update of a recollection model on SQLite, from the notification to its end, under ``sys.setprofile``. Only calls in the
worker's own thread and only files of the three packages are counted; lambdas and comprehensions are not. The model
has the guarantee none. The figures are those of the second update, so that nothing is imported on the way.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.workers.worlds import open_world

ROOT = Path.cwd()
RECIPE = """
import torch
import unlearning as ul

def recipe():
    random = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(40, 8, generator=random), torch.arange(40) % 2
    names = [f"p{index}" for index in range(40)]
    return ul.Recipe(
        model=lambda: torch.nn.Linear(8, 2, bias=False),
        samples=ul.Samples(ids=names, subjects=names, inputs=inputs, targets=targets),
        holdout=(inputs[:8], targets[:8]),
        loss="cross_entropy",
        training=ul.Training(epochs=2, learning_rate=0.1, weight_decay=0.01),
    )
"""
BEFORE = {"migrate": "schema"}
"""modules whose names were other ones before the rooms"""
ROOMS = tuple(f"{ROOT / room}/" for room in ("expunge/service", "expunge/workers", "service", "workers", "unlearning"))


def main() -> None:
    """Print the three counts and the version that the update published."""
    settings, migrate = _imported("settings"), _imported("migrate")
    with tempfile.TemporaryDirectory() as folder:
        recipes = Path(folder) / "recipes"
        recipes.mkdir()
        (recipes / "linear.py").write_text(RECIPE)
        url = f"sqlite:///{folder}/path.db"
        chosen = settings.Settings(home=Path(folder), database_url=url, recipes=recipes, device="cpu")
        settings.ensure_secrets(chosen)
        migrate.migrate(_imported("db").Database(chosen.database_url))
        world = open_world(chosen)
        model_id = world.live("linear", threshold=1e9)
        for person in ("p3", "p4"):
            world.delete(person)
            modules, functions, depth = reached(lambda: world.work(model_id))
        number = world.head(model_id).number
        (world.storage if hasattr(world, "storage") else world.workshop).close()
    print(f"modules {modules}, functions {functions}, depth {depth} (version {number} published)")


def reached(call: Callable[[], object]) -> tuple[int, int, int]:
    """Return how many modules and functions of ours ``call`` enters, and how many of ours are nested at most."""
    seen: set[CodeType] = set()
    depth = deepest = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, deepest
        code = frame.f_code
        ours = code.co_filename.startswith(ROOMS) and not code.co_name.startswith("<")
        if event not in ("call", "return") or not ours:
            return
        depth += 1 if event == "call" else -1
        deepest = max(deepest, depth)
        seen.add(code)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len({code.co_filename for code in seen}), len(seen), deepest


def _imported(name: str) -> Any:
    """Import a module of ``service`` from where it is, or was before the packages had rooms."""
    for path in (f"service.{name}", f"service.{BEFORE.get(name)}", f"expunge.service.infra.{name}"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(path)
    raise ModuleNotFoundError(f"this checkout has no module {name} of service")


if __name__ == "__main__":
    main()
