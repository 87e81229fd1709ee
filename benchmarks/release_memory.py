"""What an update of a 45 MB model takes in memory, as a multiple of its checkpoint (Linux).

One process prepares the model; each of two others, which never held its state, forgets people in it: its greatest
resident memory during the update, above what it held before with the model itself loaded.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import func, select

from benchmarks import release
from benchmarks.release import TENANT
from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import Model, Version
from expunge.workers.runtime.process import Process
from unlearning.accounting.policy import Policy

FEATURES, CLASSES = 1_120_000, 10
CHECKPOINT = 4 * FEATURES * CLASSES
UPDATES = {"": ("p1",), ", two people": ("p2", "p3")}


def rows() -> Iterator[dict[str, Any]]:
    for label, taken in measured().items():
        yield {
            "name": f"update of a 45 MB model{label}: greatest resident memory / checkpoint",
            "value": taken / CHECKPOINT,
            "target": "reported",
            "unit": "ratio",
            "met": None,
            "sides": {"bytes": taken, "checkpoint_bytes": CHECKPOINT},
        }


def measured() -> dict[str, int]:
    """Bytes, by the label of the update."""
    with tempfile.TemporaryDirectory() as folder:
        model_id = step("prepare", folder)
        return {label: int(step("release", folder, model_id, *going)) for label, going in UPDATES.items()}


def step(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.release_memory", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def prepare(folder: Path) -> str:
    process, model_id = release.live(folder, people=4, features=FEATURES, classes=CLASSES)
    process.storage.close()
    return model_id


def forget(folder: Path, model_id: str, going: Sequence[str]) -> int:
    torch.set_num_threads(1)
    process = Process.of(Settings(home=folder / "home", recipes=folder, device="cpu"))
    for subject in going:
        release.delete(process, subject)
    worker = release.worker(process)
    with process.storage.database.read() as session:
        policy = Policy.from_json(session.get_one(Model, model_id).policy)
    before = newest(process)
    worker._benches.of(1, TENANT, "recipe", policy)  # the model itself is there between updates
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    held = memory("VmRSS")
    worker.work(model_id)
    if newest(process) != before + 1:
        raise RuntimeError("there was no update, or more than one")
    process.storage.close()
    return memory("VmHWM") - held


def newest(process: Process) -> int:
    with process.storage.database.read() as session:
        return session.scalar(select(func.max(Version.number))) or 0


def memory(name: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        print(prepare(Path(sys.argv[2])))
    else:
        print(forget(Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
