"""Count the modules and functions of Expunge that one update runs through, and how deep their calls nest.

``python tests/docs/reach.py`` in a working tree prints ``{"modules": ..., "functions": ..., "depth": ...}``. The update
forgets one person of a small convex model with the method ``recollection``, on SQLite.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

PACKAGES = ("service", "workers", "unlearning")
MIGRATE = {False: "service.schema", True: "service.infra.migrate"}
"""where ``migrate`` is, before the rooms and since"""


class Trace:
    """The functions that ran, and how many of them were open at once at most."""

    def __init__(self, root: Path) -> None:
        self._roots = tuple(f"{root / package}/" for package in PACKAGES)
        self.functions: set[CodeType] = set()
        self.depth = self._open = 0

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(self._roots) or code.co_name[0] == "<":
            return
        self._open += 1 if event == "call" else -1
        self.depth = max(self.depth, self._open)
        self.functions.add(code)

    def of(self, work: Callable[[], object]) -> dict[str, int]:
        """Run ``work`` and return the three figures."""
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
        modules = {code.co_filename for code in self.functions}
        return {"modules": len(modules), "functions": len(self.functions), "depth": self.depth}


def one_update(root: Path, home: Path) -> dict[str, int]:
    """Publish version 1 of a model, delete two people one after the other, and return the figures of the second."""
    worlds = importlib.import_module("tests.workers.worlds")
    fixtures = importlib.import_module("tests.service.conftest")
    database_url = f"sqlite:///{home / 'expunge.db'}"
    database = fixtures.Database(database_url)
    importlib.import_module(MIGRATE[(root / "service" / "infra").is_dir()]).migrate(database)
    database.close()
    settings = fixtures.Settings(home=home, database_url=database_url, recipes=worlds.RECIPES, device="cpu")
    sys.modules[fixtures.Settings.__module__].ensure_secrets(settings)
    world = worlds.open_world(settings)
    model_id = world.live()
    world.delete("p2")
    world.work(model_id)
    world.delete("p3")
    figures = Trace(root).of(lambda: world.work(model_id))
    assert len(world.versions(model_id)) == 3, "the update was not published"
    return figures


if __name__ == "__main__":
    here = Path.cwd()
    sys.path.insert(0, str(here))
    with TemporaryDirectory() as folder:
        print(json.dumps(one_update(here, Path(folder))))
