"""What a preparation, an update and a backlog cost as n, d, the people and the backlog grow, with fits.

Everything runs on SQLite, through the service's own worker in this process. CPU seconds, of this process and of the
readers and worlds that it makes: they are what does not depend on who else uses the machine's disks, and least on who
else uses its cores.
``python -m benchmarks.scaling`` measures again and writes ``scaling.json`` and ``scaling.png`` in ``results``;
named questions (``"backlog"``) are measured alone, and ``--plot`` only draws the figures that are there.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.crowd import CONVERGED, cpu, one_thread
from benchmarks.release import RECOLLECTION, TENANT, delete, live, worker
from expunge_service.requests import Order, accept
from expunge_workers.runtime.process import Process

RESULTS = Path(__file__).parent / "results"
STEPS, BATCH = 64, 64
SAMPLES = (256, 512, 1024, 2048, 4096)
DIMENSIONS = (2_000, 20_000, 200_000, 2_000_000)
PEOPLE = (500, 2_000, 8_000)
RETAINED = (2_000, 4_000, 8_000, 16_000)
BACKLOGS = (30, 100, 300, 1_000, 3_000)
UPDATES = 5
QUESTIONS = {
    "preparation against n": ("people, each with one sample", "CPU seconds, all of it"),
    "update against d": ("numbers in the model", "CPU seconds an update"),
    "update against people": ("people in the model", "CPU seconds an update of one"),
    "backlog": ("requests that wait", "CPU seconds a request"),
    "newton against n": ("people, each with one sample", "CPU seconds an update of one"),
}
Points = dict[str, float]


def rows() -> Iterator[dict[str, Any]]:
    for question in QUESTIONS:
        yield measured(question)


def measured(question: str) -> dict[str, Any]:
    one_thread()
    return fitted(question, MEASURES[question]())


def fitted(question: str, points: Points) -> dict[str, Any]:
    whole = {x: float(x) * y for x, y in points.items()} if question == "backlog" else points
    fixed, each = line(whole)
    return {
        "name": f"{question}: cost of each one more",
        "value": each,
        "target": "reported",
        "unit": "CPU s",
        "met": None,
        "sides": {"points": points, "fixed": fixed, "each": each, "exponent": exponent(points)},
    }


def line(points: Mapping[str, float]) -> tuple[float, float]:
    """``a`` and ``b`` of a + b x, every point weighing by its own size."""
    x, y = _axes(points)
    each, fixed = np.polyfit(x, y, 1, w=1 / y)
    return float(fixed), float(each)


def exponent(points: Mapping[str, float]) -> float:
    """The slope in logarithms: 1 where the cost is proportional, 0 where it does not grow."""
    x, y = _axes(points)
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def against_n() -> Points:
    """One preparation (training, exact vectors, calibration, sealed rows) at fixed T and batch size, d = 640."""
    _prepared(SAMPLES[0])  # a process pays for its first model once: imports, the first products
    return {str(n): _prepared(n) for n in SAMPLES}


def _prepared(people: int) -> float:
    training = f"epochs={STEPS * BATCH // people}, batch_size={BATCH}, learning_rate=0.01, weight_decay=0.01"
    with tempfile.TemporaryDirectory() as folder:
        made: list[Process] = []
        spent = cpu(lambda: made.append(live(Path(folder), people=people, features=64, training=training)[0]))
        made[0].storage.close()
    return spent


def against_d() -> Points:
    return {str(d): _released(people=UPDATES + 3, features=d // 10, classes=10) for d in DIMENSIONS}


def against_people() -> Points:
    return {str(people): _released(people=people, features=4, classes=2) for people in PEOPLE}


def _released(policy: Mapping[str, Any] = RECOLLECTION, **crowd: Any) -> float:
    """The median over a few updates of one person each."""
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), policy=policy, **crowd)
        busy = worker(process)
        spent = []
        for index in range(UPDATES):
            delete(process, f"p{index}")
            spent.append(cpu(lambda: busy.work(model_id)))
        process.storage.close()
    return statistics.median(spent)


def against_backlog() -> Points:
    return {str(count): _drained(count) for count in BACKLOGS}


def _drained(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        process, model_id = live(Path(folder), people=count + 100, features=4, classes=2)
        with process.storage.database.write() as session:
            for index in range(count):
                accept(session, process.storage.pepper, TENANT, Order(subject_id=f"p{index}"))
        spent = cpu(lambda: worker(process).work(model_id))
        process.storage.close()
    return spent / count


def against_retained() -> Points:
    """An update of newton that is proved: a world is made, all samples are compared with the manifest, and solved."""
    policy = {"method": "newton", "guarantee": "proved", "max_accuracy_drop": None}
    return {str(n): _released(policy, people=n, features=64, training=CONVERGED) for n in RETAINED}


def draw(found: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 (measuring needs no plots)

    mpl.use("Agg")
    from matplotlib import pyplot, ticker  # noqa: PLC0415

    figure, panels = pyplot.subplots(3, 2, figsize=(9, 10), layout="constrained")
    panels.flat[-1].axis("off")
    for panel, (question, (across, up)), row in zip(panels.flat[:-1], QUESTIONS.items(), found, strict=True):
        sides = row["sides"]
        x, y = _axes(sides["points"])
        panel.loglog(x, y, "o", color="#1f4e79", label="measured")
        curve = np.geomspace(x[0], x[-1], 50)
        cost = sides["fixed"] + sides["each"] * curve
        label = f"{sides['fixed']:.3g} s + {sides['each']:.3g} s each"
        panel.loglog(curve, cost / curve if question == "backlog" else cost, "-", color="#c55a11", label=label)
        panel.set(title=question, xlabel=across, ylabel=up)
        panel.legend()
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())
        panel.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=110)


def _axes(points: Mapping[str, float]) -> tuple[Any, Any]:
    return np.array([float(x) for x in points]), np.array(list(points.values()))


MEASURES: dict[str, Callable[[], Points]] = dict(
    zip(QUESTIONS, (against_n, against_d, against_people, against_backlog, against_retained), strict=True)
)


def main(arguments: list[str]) -> None:
    figures = RESULTS / "scaling.json"
    found: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    chosen = [each for each in arguments if each != "--plot"] or ([] if "--plot" in arguments else list(QUESTIONS))
    for question in chosen:
        found[question] = measured(question) | {"load": os.getloadavg()[0]}
        print(json.dumps(found[question]), flush=True)
    for question, row in found.items():
        found[question] = row | fitted(question, row["sides"]["points"])
    figures.write_text(json.dumps(found, indent=1) + "\n")
    draw([found[question] for question in QUESTIONS], RESULTS / "scaling.png")


if __name__ == "__main__":
    main(sys.argv[1:])
