"""Recipes as files in the folder that the operator names: found by name and parsed, never imported.

The API checks a registration with it. A recipe is code, and only workers run it.
"""

from __future__ import annotations

import ast
from pathlib import Path

from expunge_service.requests import RequestRefused


def locate(root: Path, name: str) -> Path | None:
    """Return the file of a recipe, ``NAME.py`` or ``NAME/recipe.py`` under ``root``; None where there is neither."""
    return next((path for path in (root / f"{name}.py", root / name / "recipe.py") if path.is_file()), None)


def defines_recipe(path: Path) -> bool:
    """Return whether the file, parsed and not run, binds ``recipe`` at its top level.

    Raises:
        SyntaxError, ValueError: it is not a Python file.
        OSError: it cannot be read.
    """
    return any("recipe" in _bound(statement) for statement in ast.parse(path.read_bytes()).body)


def declares_sources(path: Path, name: str = "recipe") -> bool:
    """Return whether ``name``, parsed and not run, is a function with a default that is called or named: a source.

    A number or a text is none. A function that is imported from a module beside the file is looked for there. Raises as
    ``defines_recipe`` does.
    """
    for statement in reversed(ast.parse(path.read_bytes()).body):
        match statement:
            case ast.FunctionDef(name=bound, args=parameters) if bound == name:
                defaults = [*parameters.defaults, *parameters.kw_defaults]
                return any(isinstance(default, ast.Call | ast.Name | ast.Attribute) for default in defaults)
            case ast.ImportFrom(module=str(module), names=aliases):
                named = next((alias.name for alias in aliases if (alias.asname or alias.name) == name), None)
                file = path.parent / f"{module.replace('.', '/')}.py"
                if named is not None:
                    return file.is_file() and declares_sources(file, named)
    return False


def gets_rows(root: Path, name: str) -> bool:
    """Return whether the recipe of this name is one with rows; False also where its file is missing or unreadable."""
    path = locate(root, name)
    try:
        return path is not None and declares_sources(path)
    except (SyntaxError, ValueError, OSError):
        return False


def is_other_module(path: Path) -> bool:
    """Return whether the file is sound Python without a recipe, as a module that recipes share. Raises OSError."""
    try:
        return not defines_recipe(path)
    except (SyntaxError, ValueError):
        return False


def require_recipe(root: Path, name: str) -> None:
    """Check that a worker would find a recipe of this name. Raises RequestRefused, which does not repeat the name."""
    path = locate(root, name)
    if path is None:
        what = "There is no recipe of this name."
        raise _refused(what, "Put NAME.py or NAME/recipe.py into the folder that EXPUNGE_RECIPES names.")
    try:
        found = defines_recipe(path)
    except (SyntaxError, ValueError) as error:
        line = f": see line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise _refused(f"The recipe's file is not valid Python{line}.", "Correct it and try again.") from None
    except OSError as error:
        what = f"The API cannot read the recipe's file ({type(error).__name__})."
        raise _refused(what, "Let the API's user read the folder that EXPUNGE_RECIPES names.") from None
    if not found:
        what = "The recipe's file does not define recipe()."
        raise _refused(what, "Define `def recipe(rows: ul.Rows = ul.table(...))` in it.")


def _refused(what: str, hint: str) -> RequestRefused:
    return RequestRefused(422, "no_recipe", what, [{"pointer": "/recipe", "detail": hint}])


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds, as far as a recipe would be bound."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.ImportFrom | ast.Import):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return set()
