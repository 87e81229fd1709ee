"""Recipes by name, from the folder that the operator named. Only worker processes use this: a recipe is code.

``digits`` is ``digits.py`` or ``digits/recipe.py``; ``digits/convolutional`` is ``digits/convolutional.py``. A
recipe's own folder is importable while it loads, so two recipes may share a module in it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from expunge.service.models import locate
from expunge.workers.runtime.failures import refusal
from expunge.workers.runtime.recipe_digest import code_digest, settings_digest
from unlearning.model.user_code.global_state import settings_kept
from unlearning.recipe import Recipe
from unlearning.types import RecipeError, Refused

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,3}")


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe as it was just run, with the digests of its code and of its settings."""

    recipe: Recipe
    digest: str
    settings: str


def find(root: Path, name: str) -> Path:
    """Return the recipe's file. Raises Refused for a name that is not allowed, or if there is no such file."""
    if not NAME.fullmatch(name):
        raise Refused("The recipe's name is not allowed.", "Use lower-case letters, digits, - and _, with / between.")
    path = locate(root, name)
    if path is None:
        raise Refused(f"There is no recipe {name!r}.", f"Put {name}.py or {name}/recipe.py into EXPUNGE_RECIPES.")
    return path.resolve()


def digest_of(path: Path) -> str:
    """Return the digest of the recipe's code, local modules included, in hex."""
    return code_digest(path)


def names(root: Path) -> list[str]:
    """Return the names of the recipes in the folder, sorted: each ``NAME.py`` and ``NAME/recipe.py``."""
    files = [path.stem for path in root.glob("*.py")] + [path.parent.name for path in root.glob("*/recipe.py")]
    return sorted({name for name in files if NAME.fullmatch(name)})


def check(root: Path, name: str) -> None:
    """Import the recipe without running it. Raises Refused as ``load`` does."""
    path = find(root, name)
    with _plainly(path), _importable(path.parent), settings_kept():
        _run(path, digest_of(path))


def load(root: Path, name: str) -> LoadedRecipe:
    """Run the recipe and return it. Raises Refused with a plain reason for any exception of the recipe's code.

    The exception's message may contain a person's data: it is in the hint only, which no audit entry holds.
    """
    path = find(root, name)
    digest = digest_of(path)
    with _plainly(path), _importable(path.parent), settings_kept():
        recipe = _run(path, digest).recipe()
    if not isinstance(recipe, Recipe):
        raise Refused(f"recipe() returned a {type(recipe).__name__}.", "Return an unlearning.Recipe.")
    return LoadedRecipe(recipe, digest, settings_digest(recipe))


def _run(path: Path, digest: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_expunge_recipe_{digest[:16]}", path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path.name} is not a Python file.", "A recipe is a .py file that defines recipe().")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "recipe", None)):
        raise Refused(f"{path.name} does not define recipe().", "Define `def recipe(): return unlearning.Recipe(...)`.")
    return module


@contextmanager
def _plainly(path: Path) -> Iterator[None]:
    """Turn any exception of the recipe's code into Refused, except MemoryError: that is the machine's, and may pass."""
    try:
        yield
    except MemoryError:
        raise
    except (RecipeError, Refused) as error:
        raise Refused(error.what, error.hint) from None
    except Exception as error:
        raise refusal(error, path.parent) from None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Import the folder's modules again and drop them at the end: two recipes may have modules of the same name.

    No bytecode is written: Python would take it for that of a file which was changed within the second to one as long.
    """
    before, writes_no_bytecode = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
        sys.path.remove(str(folder))
        new = set(sys.modules) - before
        local = {name for name in new if "." not in name and _lies_in(sys.modules[name], folder)}
        for name in new:
            if name.partition(".")[0] in local:
                del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Return whether the module, or the package, lies directly in the folder."""
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    place = next((Path(each) for each in places if each), None)
    if place is None:
        return False
    return folder == (place.parent.parent if place.name == "__init__.py" else place.parent)
