"""A copy of a recipe's folder whose tables lack every tenth row: what the recipe reads before the data grew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

EVERY = 10
"""one row in so many is left out"""
LARGEST_BYTES = 2**28
"""of all tables together; larger ones are not copied"""
MOST_FILES = 2_000


def shorten(folder: Path, copy: Path) -> list[str]:
    """Copy the folder; return the names of the tables in it that are shorter in the copy, sorted.

    Modules are copied, other files are linked. Returns an empty list, and copies nothing, where the folder has too
    many files, or tables that are too large.
    """
    files = _files(folder)
    if len(files) > MOST_FILES or sum(each.stat().st_size for each in files if each.suffix in TABLES) > LARGEST_BYTES:
        return []
    found = []
    for file in files:
        place = copy / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in TABLES and TABLES[file.suffix](file, place):
            found.append(file.relative_to(folder).as_posix())
        elif not place.exists():
            shutil.copyfile(file, place) if file.suffix == ".py" else place.symlink_to(file)
    return sorted(found)


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith((".", "__"))]
        found += [Path(place) / name for name in names if (Path(place) / name).is_file()]
        if len(found) > MOST_FILES:
            break
    return found


def _lines(header: int) -> Callable[[Path, Path], bool]:
    """Return the shortening of a file with a row a line. A quoted field may hold a line's end: such a file is left."""

    def shortened(file: Path, copy: Path) -> bool:
        lines = file.read_bytes().splitlines(keepends=True)
        if any(line.count(b'"') % 2 for line in lines):
            return False
        kept = lines[:header] + [line for number, line in enumerate(lines[header:]) if _stays(number)]
        copy.write_bytes(b"".join(kept))
        return len(kept) < len(lines)

    return shortened


def _array(file: Path, copy: Path) -> bool:
    try:
        values = np.load(file, allow_pickle=False)
    except (ValueError, OSError):
        return False
    if values.ndim == 0 or len(values) < EVERY:
        return False
    np.save(copy, values[[number for number in range(len(values)) if _stays(number)]])
    return True


def _parquet(file: Path, copy: Path) -> bool:
    try:
        parquet: Any = import_module("pyarrow.parquet")  # an extra
    except ImportError:
        return False
    rows = parquet.read_table(file)
    kept = [number for number in range(rows.num_rows) if _stays(number)]
    parquet.write_table(rows.take(kept), copy)
    return len(kept) < int(rows.num_rows)


def _stays(row: int) -> bool:
    return row % EVERY != EVERY // 2


TABLES: Mapping[str, Callable[[Path, Path], bool]] = MappingProxyType(
    {
        ".csv": _lines(1),
        ".tsv": _lines(1),
        ".jsonl": _lines(0),
        ".ndjson": _lines(0),
        ".npy": _array,
        ".parquet": _parquet,
    }
)
"""the shortening of each kind of table: (file, copy) -> whether the copy is shorter"""
