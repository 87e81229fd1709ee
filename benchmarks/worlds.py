"""What recipes with rows cost: opening a cold update beside the old form's, a world, and rows that are mapped.

``python -m benchmarks worlds``. CPU seconds of this process and of the processes that read for it; both sides one after
the other, ``TIMES`` times, medians. An opening ends when the samples of the others are compared with the manifest and
can be trained on: the old form runs the recipe in the worker, the new one has a reader hand over sealed rows. The world
of a trivial recipe imports a module and answers; it is a fork of the template, which is not counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import DEFAULT_TENANT
from expunge.workers.runtime import recipes
from expunge.workers.runtime.rows_recipe import declared, survey
from expunge.workers.runtime.worlds import PartOrder, make_world, readers, template
from expunge.workers.storage import manifest
from unlearning.accounting.policy import Granularity

TIMES = 5
ROWS, CSV_ROWS, FILES = 100_000, 20_000, 5_000
EACH = 5
"""rows of one person"""
FEATURES = [f"f{number}" for number in range(10)]
SALT, PEPPER = b"salt", Pepper.of(hashlib.sha256(b"pepper").digest())
HEAD = "import csv\nfrom pathlib import Path\nimport numpy as np\nimport torch\nimport unlearning as ul\n"
WHOLE = """
def whole(samples, width):
    holdout = torch.zeros(2, width), torch.zeros(2).long()
    return ul.Recipe(model=lambda: torch.nn.Linear(width, 2), samples=samples, holdout=holdout, loss="cross_entropy",
                     training=ul.Training(epochs=1))
"""
OLD = {
    "parquet": """
def recipe():
    return whole(ul.Samples.from_parquet({path!r}, id="id", person="person", target="y", features={features}), 10)
""",
    "csv": """
def recipe():
    rows = [*csv.DictReader(open({path!r}))]
    x = torch.tensor([[float(row[name]) for name in {features}] for row in rows])
    y = torch.tensor([int(row["y"]) for row in rows])
    return whole(ul.Samples([row["id"] for row in rows], [row["person"] for row in rows], x, y), 10)
""",
    "files": """
def recipe():
    rows = [*csv.DictReader(open({path!r}))]
    x = torch.stack([torch.from_numpy(np.load(Path({folder!r}, row["file"]))) for row in rows])
    names = [row["id"] for row in rows]
    return whole(ul.Samples(names, [row["person"] for row in rows], x, torch.zeros(len(rows)).long()), 784)
""",
}
NEW = {
    "parquet": 'ul.table("rows.parquet", person="person", id="id")',
    "csv": 'ul.table("rows.csv", person="person", id="id")',
    "files": 'ul.folder("files", index="rows.csv", file="file", person="person", id="id")',
}
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
TARGETS = {"parquet": 1.2, "csv": 0.6, "files": 0.8}


def rows() -> Iterator[dict[str, Any]]:
    template()
    for kind, count in (("parquet", ROWS), ("csv", CSV_ROWS), ("files", FILES)):
        with tempfile.TemporaryDirectory() as name:
            lay_out(Path(name), kind, count)
            yield ratio(f"opening a cold update of {count:,} rows, {kind}", *measured(Path(name)), TARGETS[kind])
    yield of_a_world()
    yield of_mapped_rows()


def lay_out(folder: Path, kind: str, count: int) -> None:
    """Write the table, and a recipe of each form over it."""
    draw = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "id": np.arange(count),
        "person": [f"p{row // EACH}" for row in range(count)],
        "y": draw.integers(0, 2, count),
    }
    if kind == "files":
        (folder / "files").mkdir()
        columns["file"] = [f"{row}.npy" for row in range(count)]
        for name in columns["file"]:
            np.save(folder / "files" / name, draw.random(784, dtype=np.float32))
    else:
        columns |= {name: draw.random(count, dtype=np.float32) for name in FEATURES}
    table = pa.table(columns)
    path = folder / ("rows.parquet" if kind == "parquet" else "rows.csv")
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        table.to_pandas().to_csv(path, index=False)
    old = OLD[kind].format(path=str(path), features=FEATURES, folder=str(folder / "files"))
    (folder / "old.py").write_text(HEAD + WHOLE + old)
    (folder / "new.py").write_text(f"import unlearning as ul\n\ndef recipe(rows={NEW[kind]}):\n    return None\n")


def measured(folder: Path) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of each opening: in the new form, and in the old one."""
    settings = Settings(home=folder / "home", recipes=folder)
    recipe = declared(settings, DEFAULT_TENANT, "new")
    samples = recipes.load(folder, "old").recipe.samples
    everyone = manifest.entries(PEPPER, DEFAULT_TENANT, samples, Granularity.SUBJECT)

    def old() -> None:
        given = manifest.given(PEPPER, DEFAULT_TENANT, recipes.load(folder, "old").recipe.samples)
        manifest.compared(given, everyone)

    def new() -> None:
        with readers():
            units = survey(recipe, settings, DEFAULT_TENANT, Granularity.SUBJECT, salt=SALT)
            given = manifest.given(PEPPER, DEFAULT_TENANT, units.samples())
            manifest.compared(given, everyone)
            with units.reader.rows({"rows": [number for _, number in units.by_digest.values()]}):
                pass

    old(), new()  # what is imported once is not counted
    pairs = [(cpu(new), cpu(old)) for _ in range(TIMES)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def cpu(task: Callable[[], None]) -> float:
    """Return the CPU seconds of a task, here and in what the template forked for it."""
    before = used()
    task()
    return used() - before


def used() -> float:
    with template().line({"kind": "nothing"}):  # the template waits for readers that ended
        pass
    time.sleep(0.05)
    fields = Path(f"/proc/{template().process.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def of_a_world() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "trivial.py").write_text(
            "import unlearning as ul\n\ndef recipe(rows=ul.table('a.csv', person='p')): ...\n"
        )
        code = recipes.code_of(Path(name) / "trivial.py")

        def world() -> None:
            with make_world("declare", code, 1) as made:
                made(PartOrder())

        world()
        seconds = [cpu(world) for _ in range(TIMES * 2)]
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


def ratio(name: str, new: list[float], old: list[float], target: float) -> dict[str, Any]:
    value = median(first / second for first, second in zip(new, old, strict=True))
    return row(f"{name}, CPU against the old form's", value, target, {"new": new, "old": old})


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
