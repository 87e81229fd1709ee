"""What a process must have on its path to run the packages of a source tree, and none that is installed."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOUSES: tuple[str, ...] = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["pythonpath"]
)
"""the folders that packages lie in, beneath the tree's root"""


def path_of(root: Path) -> str:
    return os.pathsep.join(str(root / house) for house in HOUSES)


SOURCE_PATH = path_of(ROOT)
