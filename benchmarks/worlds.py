"""What recipes with rows cost: a world, and rows that are mapped.

``python -m benchmarks worlds``. CPU seconds of this process and of what its template forks, the median of ``TIMES``.
The world of a trivial recipe imports a module and answers; it is a fork of the template, which is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.crowd import cpu
from expunge_workers.runtime import recipes
from expunge_workers.runtime.worlds import PartOrder, make_world, template

TIMES = 10
WRITE = """
import sys, numpy as np, pyarrow as pa
from pathlib import Path
from pyarrow import parquet
from unlearning.rows import open_rows, rows_to_bytes, table
columns = {f"f{number}": np.random.default_rng(number).random(1_000_000) for number in range(100)}
parquet.write_table(pa.table({"person": np.arange(1_000_000) // 5, **columns}), Path(sys.argv[1], "table.parquet"))
rows = open_rows(table("table.parquet", person="person"), Path(sys.argv[1]))
Path(sys.argv[1], "rows").write_bytes(rows_to_bytes(rows))
"""
SUM = """
import json, mmap, sys
from pathlib import Path
from unlearning.rows import rows_from_bytes
def own():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("Anonymous:")).split()[1]) / 1e3
file = open(sys.argv[1], "rb")
rows = rows_from_bytes(memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)))
before = own()
total = sum(float(rows[name].sum()) for name in rows.columns if name != "person")
print(json.dumps({"own": own() - before, "sum": total}))
"""
TRIVIAL = "import unlearning as ul\n\ndef recipe(rows=ul.table('a.csv', person='p')): ...\n"


def rows() -> Iterator[dict[str, Any]]:
    template()
    yield of_a_world()
    yield of_mapped_rows()


def of_a_world() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "trivial.py").write_text(TRIVIAL)
        code = recipes.code_of(Path(name) / "trivial.py")

        def world() -> None:
            with make_world("declare", code, 1) as made:
                made(PartOrder())

        world()
        seconds = [cpu(world) for _ in range(TIMES)]
    return row("a world of a trivial recipe, CPU seconds", median(seconds), 0.08, {"seconds": seconds})


def of_mapped_rows() -> dict[str, Any]:
    """A pass over the columns of 800 MB of rows in a process that maps them: memory of its own, in MB."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "rows"
        subprocess.run([sys.executable, "-c", WRITE, name], check=True)
        command = [sys.executable, "-c", SUM, str(file)]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        size = file.stat().st_size / 1e6
    return row(f"own memory of a pass over {size:,.0f} MB of mapped rows, MB", answer["own"], size / 20, answer)


def row(name: str, value: float, target: float, sides: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "target": f"<= {target:g}",
        "unit": "",
        "met": value <= target,
        "sides": sides,
    }


if __name__ == "__main__":
    for each in rows():
        print(each)
