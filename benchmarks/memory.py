"""Resident memory of a preparation by sketch at scale: 8,000 people, a network of 203,530 weights, r = 64.

``python -m benchmarks.memory`` prints the row; with ``--json`` as one JSON object. The preparation runs in a process of
its own, from random data (made inside it), and is judged by that process's greatest resident size, everything included:
interpreter, torch, data, trajectory, state.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEOPLE, HIDDEN, RANK, STEPS = 8000, 256, 64, 2
LIMIT = 2 * 10**9
"""bytes; performance.md and the issue name 2 GB"""
Row = dict[str, object]


def rows() -> Iterator[Row]:
    """The measurement, with the same for an eighth of the people beside it: what grows, and what does not."""
    whole, eighth = measured(PEOPLE), measured(PEOPLE // 8)
    yield {
        "name": f"resident memory: preparing n = {PEOPLE:,}, d = {whole['dimension']:,}, r = {RANK}",
        "value": whole["resident"] / 1e9,
        "target": "<= 2",
        "unit": "GB",
        "met": whole["resident"] <= LIMIT,
        "sides": {"n": PEOPLE, **whole, "an_eighth_of_the_people": eighth},
    }


def measured(people: int) -> dict[str, float]:
    """``resident`` bytes at most, ``before`` the preparation began, ``cpu`` seconds, and the ``dimension``."""
    command = [sys.executable, "-m", "benchmarks.memory", "--alone", str(people)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def prepare(people: int) -> dict[str, float]:
    """In this process: data, training, preparation."""
    import torch  # noqa: PLC0415  (the process that only starts another one does not need it)
    from torch import nn  # noqa: PLC0415

    from expunge_lab.methods.recollection_sketch import RecollectionSketch  # noqa: PLC0415
    from unlearning import Problem, Recipe, Samples, Training  # noqa: PLC0415
    from unlearning.model.training import train  # noqa: PLC0415

    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(people, 784, generator=random), torch.randint(10, (people,), generator=random)
    names = [f"person-{index:05d}" for index in range(people)]
    recipe = Recipe(
        lambda: nn.Sequential(nn.Linear(784, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)),
        Samples(names, names, inputs, targets),
        (inputs[:10], targets[:10]),
        "cross_entropy",
        Training(epochs=STEPS, learning_rate=0.05, batch_size=people),
    )
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = train(problem, examples)
    before, start = resident(), time.process_time()
    state = RecollectionSketch(rank=RANK).sketched(problem, examples, learned, seed=1)
    if len(state.vectors) != people:
        raise RuntimeError(f"{len(state.vectors)} of {people} people have a row")
    spent = time.process_time() - start
    return {"resident": resident(), "before": before, "cpu": spent, "dimension": problem.dimension}


def resident() -> int:
    """The greatest resident size of this process so far, in bytes (Linux counts KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--alone", type=int, metavar="PEOPLE", help="prepare in this process and say what it took")
    arguments = parser.parse_args()
    if arguments.alone:
        sys.stdout.write(json.dumps(prepare(arguments.alone)) + "\n")
        return
    for row in rows():
        text = json.dumps(row) if arguments.json else f"{row['value']:.2f} {row['unit']} {row['target']} {row['name']}"
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
