"""``expunge init``: recipes to start from."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from expunge_client.cli.output import USAGE, CommandError, errors

EXAMPLES = Path(str(files("expunge.examples")))


def init(
    folder: Annotated[Path, typer.Argument(help="A new folder, or an empty one.")] = Path("recipes"),
) -> None:
    """Write the example recipes into a folder, to start from."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} is not an empty folder.", "Nothing was written. Name another folder.", USAGE)
    for recipe in sorted(EXAMPLES.glob("*/recipe.py")):
        target = folder / recipe.parent.name
        shutil.copytree(recipe.parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    errors.print(f"written: {folder}. Next: expunge up", markup=False, soft_wrap=True)
