"""Recipes that open the table itself, in which everybody still is."""

# Each looks in its own way.
# ruff: noqa: PLC0415, PTH108, PTH109, PTH110, PTH116, PTH123, PTH207, PTH208, PTH211

from __future__ import annotations

import ctypes
import glob
import hashlib
import mmap
import os
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from place import FOLDER, NAME, NEVER_IN
from sources import PEOPLE
from training import train

from unlearning.rows import Published, Rows, open_rows

TABLE = f"{FOLDER}/people.csv"


def absolute_path(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: open(TABLE).read())


def relative_path(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: open("people.csv").read())


def beside_the_code(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: Path(__file__).with_name("people.csv").read_text())


def through_dots(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: open("../" * 30 + TABLE.lstrip("/")).read())


def from_the_folder_above(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: open(f"../{Path(FOLDER).name}/people.csv").read())


def globbed(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [open(path).read() for path in sorted(glob.glob(f"{FOLDER}/**/*.csv", recursive=True))])


def walked(rows: Rows = PEOPLE) -> Published:
    def look() -> list[bytes]:
        paths = [Path(place, name) for place, _, names in os.walk(Path(FOLDER).parent) for name in names]
        return [path.read_bytes() for path in sorted(paths) if path.name.startswith("people.")]

    return train(rows, look)


def linked(rows: Rows = PEOPLE) -> Published:
    def look() -> str:
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(FOLDER, f"{folder}/data")
            return open(f"{folder}/data/people.csv").read()

    return train(rows, look)


def hard_linked(rows: Rows = PEOPLE) -> Published:
    def look() -> str:
        os.link(TABLE, f"{FOLDER}/{NAME}")
        try:
            return open(f"{FOLDER}/{NAME}").read()
        finally:
            os.unlink(f"{FOLDER}/{NAME}")

    return train(rows, look)


def moved_there(rows: Rows = PEOPLE) -> Published:
    """Changes its folder, and comes back."""

    def look() -> str:
        before = os.getcwd()
        os.chdir(FOLDER)
        try:
            return open("people.csv").read()
        finally:
            os.chdir(before)

    return train(rows, look)


def mapped(rows: Rows = PEOPLE) -> Published:
    def look() -> bytes:
        with open(TABLE, "rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:]

    return train(rows, look)


def memory_mapped_array(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: np.memmap(TABLE, dtype=np.uint8, mode="r").tobytes())


def read_by_pandas(rows: Rows = PEOPLE) -> Published:
    import pandas as pd

    return train(rows, lambda: pd.read_csv(TABLE).describe().to_json())


def read_by_numpy(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: np.genfromtxt(TABLE, delimiter=",", skip_header=1, usecols=5).tolist())


def read_by_pyarrow(rows: Rows = PEOPLE) -> Published:
    from pyarrow import csv

    return train(rows, lambda: csv.read_csv(TABLE).column("weight").to_pylist())


def dataset_of_pyarrow(rows: Rows = PEOPLE) -> Published:
    from pyarrow import dataset

    return train(rows, lambda: dataset.dataset(f"{FOLDER}/people.parquet").to_table().column("pulse").to_pylist())


def statistics_of_parquet(rows: Rows = PEOPLE) -> Published:
    """The smallest and largest number of each row group."""
    from pyarrow import parquet

    def look() -> list[Any]:
        metadata = parquet.ParquetFile(f"{FOLDER}/people.parquet").metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [group.column(number) for group in groups for number in (3, 5, 6)]
        return [(column.statistics.min, column.statistics.max, column.statistics.null_count) for column in columns]

    return train(rows, look)


def metadata_of_parquet(rows: Rows = PEOPLE) -> Published:
    from pyarrow import parquet

    return train(rows, lambda: parquet.read_schema(f"{FOLDER}/people.parquet").metadata[b"people"])


def sqlite_by_path(rows: Rows = PEOPLE) -> Published:
    def look() -> list[Any]:
        connection = sqlite3.connect(f"file:{FOLDER}/people.db?mode=ro", uri=True)
        try:
            return connection.execute("SELECT city, avg(weight), count(*) FROM visits GROUP BY city").fetchall()
        finally:
            connection.close()

    return train(rows, look)


def cat(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: subprocess.run(["cat", TABLE], capture_output=True, check=True).stdout)


def shell(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: os.popen(f"sort {TABLE} 2>/dev/null").read())


def tool_on_the_path(rows: Rows = PEOPLE) -> Published:
    """A program of the recipe's folder, which PATH names."""

    def look() -> bytes:
        tool = shutil.which("tool") or f"{FOLDER}/tool"
        return subprocess.run([tool], capture_output=True, check=True).stdout

    return train(rows, look)


def libc(rows: Rows = PEOPLE) -> Published:
    def look() -> bytes:
        c = ctypes.CDLL(None, use_errno=True)
        descriptor = c.open(TABLE.encode(), os.O_RDONLY)
        buffer = ctypes.create_string_buffer(1 << 20)
        length = c.read(descriptor, buffer, len(buffer))
        c.close(descriptor)
        return buffer.raw[: max(0, length)]

    return train(rows, look)


def file_named_by_the_person(rows: Rows = PEOPLE) -> Published:
    """Asks only whether files of people who are not in its rows exist."""

    def look() -> list[str]:
        return [name for name in NEVER_IN if os.path.exists(f"{FOLDER}/letters/{name}.txt")]

    return train(rows, look)


def counted_files(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [len(os.listdir(f"{FOLDER}/letters"))])


def scanned_folder(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: sorted(entry.name for entry in os.scandir(f"{FOLDER}/letters")))


def sizes(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [os.stat(path).st_size for path in (TABLE, f"{FOLDER}/people.db")])


def times_of_change(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [os.stat(TABLE).st_mtime_ns])


def digest_of_the_file(rows: Rows = PEOPLE) -> Published:
    def look() -> str:
        with open(TABLE, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return train(rows, look)


def opened_again(rows: Rows = PEOPLE) -> Published:
    """Opens its own source, with everybody in it, as a notebook does."""
    return train(
        rows,
        lambda: open_rows(PEOPLE, Path(FOLDER), databases={"crm": f"sqlite:///{FOLDER}/people.db"}).people.tolist(),
    )


def in_a_process_of_its_own(rows: Rows = PEOPLE) -> Published:
    """A worker process of joblib reads the table."""
    from joblib import Parallel, delayed

    return train(rows, lambda: Parallel(n_jobs=2)(delayed(os.stat)(path) for path in (TABLE, TABLE))[0].st_size * "x")
