"""The tables of the check's own recipes. Drawn with a fixed seed, they are the same in each run."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"
PEOPLE = 3000
"""of ``clinic``: more than all steps delete"""


def person(number: int) -> str:
    """Return the id of a person of ``clinic``."""
    return f"patient-{number:05d}"


def write_recipes(folder: Path) -> None:
    """Put both recipes with their tables into an operator's folder of recipes."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in RECIPES.glob("*.py"):
        shutil.copy(path, folder)
    (folder / "clinic.csv").write_text(clinic())
    write_lasting(folder, 0)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)  # read by uid 10001 in the containers


def clinic() -> str:
    """Return the table of ``clinic``: a row for each person."""
    drawn = random.Random(1)
    lines = ["id,person,a,b,c,d,label"]
    for number in range(PEOPLE):
        values = [drawn.gauss(0, 1) for _ in range(4)]
        label = int(values[0] + drawn.gauss(0, 0.3) > 0)
        lines.append(f"row-{number},{person(number)},{','.join(f'{each:.5f}' for each in values)},{label}")
    return "\n".join(lines) + "\n"


def write_lasting(folder: Path, seconds: int) -> None:
    """Write the table of ``lasting``: a training that begins now takes as long as that."""
    lines = ["id,person,a,seconds", *(f"l-{number},lasting-{number},{number}.5,{seconds}" for number in range(20))]
    part = folder / "lasting.csv.part"
    part.write_text("\n".join(lines) + "\n")
    part.chmod(0o644)
    part.replace(folder / "lasting.csv")
