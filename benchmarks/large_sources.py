"""Registering many samples with ``newton``: greatest memory of the worker process, and its time against a floor.

``python -m benchmarks large_sources``; ``BENCH_TENSORS`` and ``BENCH_PARQUET`` set the numbers of samples (five to a
person), ``BENCH_FEATURES`` the columns of the Parquet file. PostgreSQL (synced) and Redis are real. The floor is one
pass of a bare Parquet reader over the columns, a bare COPY of as many membership rows into the same table, and one
solve. Every side runs in a process of its own, one after the other: seconds are wall-clock, memory is ru_maxrss.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness import servers

TENSORS = int(os.environ.get("BENCH_TENSORS", "1000000"))
PARQUET = int(os.environ.get("BENCH_PARQUET", "10000000"))
FEATURES = int(os.environ.get("BENCH_FEATURES", "100"))
EACH = 5
"""samples of one person"""
GROUP = 2**18
"""rows of a row group"""
HEAD = """
import numpy as np
import torch
import unlearning as ul

def whole(samples, features):
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(500, features, generator=drawn)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(features, 1, bias=False),
        samples=samples,
        holdout=(x, (x[:, 0] > 0).long()),
        loss="binary_logistic",
        training=ul.Training(epochs=0, weight_decay=0.01, converge=1e-8),
    )
"""
SOURCES = {
    "tensors": """
def recipe():
    x = torch.randn({count}, 20, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + torch.randn({count}, generator=torch.Generator().manual_seed(2)) > 0).long()
    ids, people = map(str, range({count})), (f"p{{row // {each}}}" for row in range({count}))
    return whole(ul.Samples(list(ids), list(people), x, y), 20)
""",
    "parquet": """
def recipe():
    names = [f"f{{place}}" for place in range({features})]
    samples = ul.Samples.from_parquet("{file}", id="id", person="person", target="y", features=names)
    return whole(samples, {features})
""",
}


def rows() -> Iterator[dict[str, Any]]:
    yield from measured("tensors", TENSORS, most=4e9)
    yield from measured("parquet", PARQUET, most=6e9)


def measured(source: str, count: int, most: float) -> Iterator[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.postgres(fsync="on") as server,
        server.database() as url,
        server.database() as other,
        servers.redis_server() as broker,
    ):
        home = Path(folder)
        file = home / "samples.parquet"
        text = HEAD + SOURCES[source].format(count=count, each=EACH, features=FEATURES, file=file)
        (home / "recipe.py").write_text(text)
        sides: dict[str, Any] = {"samples": count, "people": count // EACH}
        if source == "parquet":
            sides |= {"features": FEATURES, "file_bytes": alone("written", file, count)["bytes"]}
            sides["read"] = alone("read", file)
        sides["copied"] = alone("copied", other, count)
        sides["solved"] = alone("solved", home)
        sides["registered"] = alone("registered", home, url, broker.url, count)
    label = f"registering {count:,} samples of {count // EACH:,} people with newton, {source}"
    peak = sides["registered"]["resident"]
    yield {"name": f"{label}: greatest memory", "value": peak / 1e9, "target": f"<= {most / 1e9:g}", "unit": "GB"} | {
        "met": peak <= most,
        "sides": sides,
    }
    floor = sum(sides[side]["seconds"] for side in ("read", "copied", "solved") if side in sides)
    ratio = sides["registered"]["seconds"] / floor
    target = {"target": "<= 3", "met": ratio <= 3.0} if source == "parquet" else {"target": "reported", "met": None}
    yield (
        {"name": f"{label}: time / (one reading + one COPY + one solve)", "value": ratio, "unit": "ratio"}
        | target
        | {"sides": sides}
    )


def alone(side: str, *arguments: object) -> dict[str, Any]:
    """Run one side in a process of its own; return its figures, seconds and greatest memory in bytes."""
    command = [sys.executable, "-m", "benchmarks.large_sources", side, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def written(file: str, count: str) -> dict[str, Any]:
    """Write the Parquet file, a row group at a time, in float32 and without compression."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    drawn, writer, total = np.random.default_rng(0), None, int(count)
    for start in range(0, total, GROUP):
        rows = np.arange(start, min(start + GROUP, total))
        x = drawn.standard_normal((FEATURES, len(rows)), dtype=np.float32)
        y = (x[0] + drawn.standard_normal(len(rows), dtype=np.float32) > 0).astype(np.int64)
        names = {"id": rows, "person": np.char.add("p", (rows // EACH).astype(str)), "y": y}
        table = pa.table(names | {f"f{place}": x[place] for place in range(FEATURES)})
        writer = writer or parquet.ParquetWriter(file, table.schema, compression="none", use_dictionary=["person"])
        writer.write_table(table, row_group_size=GROUP)
    assert writer is not None
    writer.close()
    return {"bytes": Path(file).stat().st_size}


def read(file: str) -> dict[str, Any]:
    """Read every column of numbers once."""
    from pyarrow import parquet  # noqa: PLC0415

    names = ["y", *(f"f{place}" for place in range(FEATURES))]
    reader = parquet.ParquetFile(file, memory_map=True)

    def whole() -> None:
        for group in range(reader.num_row_groups):
            reader.read_row_group(group, columns=names)

    return timed(whole)


def copied(url: str, count: str) -> dict[str, Any]:
    """Send as many membership rows as there are samples, in lines that are made beforehand, a transaction a block."""
    from sqlalchemy import create_engine, text  # noqa: PLC0415

    from expunge.service.infra.db import Database  # noqa: PLC0415
    from expunge.service.infra.migrate import migrate  # noqa: PLC0415

    migrate(Database(url))
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE memberships_1 PARTITION OF memberships FOR VALUES IN (1)"))
    drawn, seconds, block = np.random.default_rng(0), 0.0, 2**16
    for start in range(0, int(count), block):
        size = min(block, int(count) - start)
        digests = np.frombuffer(drawn.bytes(size * 96).hex().encode(), dtype="S64").astype(str).reshape(size, 3)
        lines = "".join(
            f"1\t{start + row}\t{one}\t{two}\t{three}\t{one}\n"
            for row, (one, two, three) in enumerate(digests.tolist())
        )
        began = time.perf_counter()
        raw: Any = engine.raw_connection()
        columns = "generation_id, position, subject_digest, sample_digest, content_digest, holder"
        with raw.cursor() as cursor, cursor.copy(f"COPY memberships ({columns}) FROM STDIN") as copy:
            copy.write(lines)
        raw.commit()
        raw.close()
        seconds += time.perf_counter() - began
    return {"seconds": seconds}


def solved(home: str) -> dict[str, Any]:
    """Train once, with the service's own solve."""
    from expunge.service.infra.settings import Settings  # noqa: PLC0415
    from expunge.workers.runtime import recipes  # noqa: PLC0415
    from unlearning.model.problem import Problem  # noqa: PLC0415
    from unlearning.model.training import train  # noqa: PLC0415

    recipe = recipes.load(Path(home), "recipe").recipe
    problem, examples = Problem(recipe), recipe.samples.examples(most=Settings().sample_bytes)
    return timed(lambda: train(problem, examples))


def registered(home: str, url: str, broker: str, count: str) -> dict[str, Any]:
    """Register the recipe and prepare it, in this process."""
    from benchmarks.release import live  # noqa: PLC0415

    distance = 1.0 / int(count)  # what forgetting one person changes falls with the number of samples
    policy = {"method": "newton", "guarantee": "proved", "max_accuracy_drop": None}
    policy |= {"max_distance": distance, "noise_std": 1000 * distance}
    before, text = peak(), (Path(home) / "recipe.py").read_text()
    os.environ["EXPUNGE_BROKER_URL"] = broker
    os.environ["EXPUNGE_DEVICE"] = "cpu"
    return timed(lambda: live(Path(home), url, text.replace("{", "{{").replace("}", "}}"), policy)) | {"before": before}


def timed(run: Callable[[], object]) -> dict[str, Any]:
    began, spent = time.perf_counter(), time.process_time()
    run()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - spent, "resident": peak()}


def peak() -> int:
    """The greatest resident size of this process so far, in bytes (Linux counts KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sides = {each.__name__: each for each in (written, read, copied, solved, registered)}
    sys.stdout.write(json.dumps(sides[sys.argv[1]](*sys.argv[2:])) + "\n")
