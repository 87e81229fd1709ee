"""Recipes by name, from the folder that the operator named, and what their code is.

``digits`` is ``digits.py`` or ``digits/recipe.py``; ``digits/convolutional`` is ``digits/convolutional.py``. A
recipe's own folder is importable while it loads, so two recipes may share a module in it.

A recipe's identity is its code as Python reads it, and what it declares (``rows_recipe``). Comments, docstrings and
layout do not count: Python's parser drops the first and the last, and this module the second. The digest is the same on
every version of Python that Expunge runs on.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from expunge_service.models import locate
from expunge_workers.runtime.failures import refusal
from expunge_workers.runtime.own_packages import NAMES
from expunge_workers.runtime.world import Code
from unlearning.model.global_state import settings_kept
from unlearning.recipe import Recipe
from unlearning.types import RecipeError, Refused

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,3}")


def find(root: Path, name: str) -> Path:
    """Return the recipe's file. Raises Refused for a name that is not allowed, or if there is no such file."""
    if not NAME.fullmatch(name):
        raise Refused("The recipe's name is not allowed.", "Use lower-case letters, digits, - and _, with / between.")
    path = locate(root, name)
    if path is None:
        raise Refused(f"There is no recipe {name!r}.", f"Put {name}.py or {name}/recipe.py into EXPUNGE_RECIPES.")
    return path.resolve()


def names(root: Path) -> list[str]:
    """Return the names of the recipes in the folder, sorted: each ``NAME.py`` and ``NAME/recipe.py``."""
    files = [path.stem for path in root.glob("*.py")] + [path.parent.name for path in root.glob("*/recipe.py")]
    return sorted({name for name in files if NAME.fullmatch(name)})


def load(root: Path, name: str, call: Callable[[Callable[..., Any]], Any]) -> Recipe:
    """Run the recipe here and return what it made, as the laboratory does; a service calls it in a world.

    Raises Refused with a plain reason for any exception of the recipe's code. The exception's message may contain a
    person's data: it is in the hint only, which no audit entry holds.

    ``call``: what calls the module's function ``recipe``.
    """
    path = find(root, name)
    with _plainly(path), _importable(path.parent), settings_kept():
        recipe = call(_run(path, digest_of(path)).recipe)
    if not isinstance(recipe, Recipe):
        raise Refused(f"recipe() returned a {type(recipe).__name__}.", "Return an unlearning.Recipe.")
    return recipe


def _run(path: Path, digest: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_expunge_recipe_{digest[:16]}", path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path.name} is not a Python file.", "A recipe is a .py file that defines recipe().")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "recipe", None)):
        raise Refused(f"{path.name} does not define recipe().", "Define `def recipe(rows: ul.Rows = ul.table(...))`.")
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


LAYOUT = frozenset({"kind", "type_comment", "type_ignores"})
"""fields of a parsed node that do not change what runs"""


def digest_of(path: Path) -> str:
    """Return the sha256, in hex, of the recipe's code and of every local module that it imports, also through others.

    A module is local if it lies in the recipe's folder. An import by a name that is computed at run time is not seen.
    A file that is not valid Python counts by its bytes.
    """
    named = sorted((file.relative_to(path.parent).as_posix(), digest) for file, digest in _local_files(path).items())
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def code_of(path: Path) -> Code:
    """Return the recipe's file and every local module that it imports: what ``digest_of`` counts, and no other file."""
    files = {file.relative_to(path.parent).as_posix(): file.read_bytes() for file in _local_files(path)}
    return Code(path.stem, files)


def _local_files(path: Path) -> dict[Path, str]:
    """Return the code's digest of a recipe's file, and of each local module that it imports, also through others."""
    folder, waiting, digests = path.parent, [path], dict[Path, str]()
    while waiting:
        file = waiting.pop()
        if file not in digests:
            digests[file], imports = _parsed(file.read_bytes())
            waiting += _files(folder, file, imports)
    return digests


@lru_cache(maxsize=64)
def _parsed(source: bytes) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return the digest of a file's code, and its imports as (level, dotted name): 0 is absolute."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return hashlib.sha256(source).hexdigest(), ()
    digest = hashlib.sha256()
    for token in _tokens(tree):
        digest.update(token.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest(), tuple(_imports(tree))


def _tokens(tree: ast.AST) -> Iterator[str]:
    """Yield the tree as words, each node closed by ``)`` and each list by ``]``; without recursion.

    Fields that are absent or empty are left out: versions of Python differ in them.
    """
    waiting: list[object] = [tree]
    while waiting:
        item = waiting.pop()
        match item:
            case ast.Constant(value=value):
                yield f"{type(value).__name__} {value!r}"
            case ast.JoinedStr(values=values):
                yield "JoinedStr("
                waiting.append(")")
                waiting += (each for each in reversed(values) if not _is_empty(each))  # Python 3.12 adds some
            case ast.AST():
                yield f"{type(item).__name__}("
                waiting.append(")")
                given = [each for each in ast.iter_fields(item) if each[0] not in LAYOUT and each[1] not in (None, [])]
                for name, value in reversed(given):
                    waiting += (value, f"{name}=")
            case list():
                yield "["
                waiting.append("]")
                waiting += (each for each in reversed(item) if not _is_text(each))
            case _:
                yield str(item)


def _is_text(node: object) -> bool:
    """Return whether the node is a docstring, or another text that is a whole statement."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield what is imported anywhere in the tree; ``from a import b`` may mean the module ``a.b`` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield from ((node.level, f"{base}.{alias.name}".lstrip(".")) for alias in node.names)
            yield node.level, base


def _files(folder: Path, importer: Path, imports: Sequence[tuple[int, str]]) -> Iterator[Path]:
    """Yield the files in the folder that these imports run: each module, and the packages that it is in."""
    for level, name in imports:
        parts = [part for part in name.split(".") if part]
        if level == 0 and parts and parts[0] in NAMES:  # no local modules
            continue
        base = folder if level == 0 else importer.parents[level - 1]
        for length in range(len(parts) + 1):
            place = base.joinpath(*parts[:length])
            for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
                if file.is_relative_to(folder) and file.parent != folder.parent and file.is_file():
                    yield file
