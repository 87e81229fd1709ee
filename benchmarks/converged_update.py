"""Forgetting one person in a converged linear head: the whole update against its maths, and against training again.

``python -m benchmarks converged_update``. CPU seconds of this process with one thread; the sides run alternately. The
update is everything that a notification starts, on SQLite: claim, recipe, samples, maths, noise, files, transaction,
keys. The maths are the method, the refinement, the bound and the noise on samples that are in memory. The retraining
starts from the beginning, on samples that are in memory too. ``fresh`` is the update of a process that has opened
nothing before: it runs the recipe, whose source still has everyone who was forgotten, and compares all samples.
``gone`` is the same where the source has lost who is forgotten. ``first`` is the first update after the registration.

``in turn``: one process updates two models alternately, another stays with a third.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.release import TENANT, another, delete, live, worker
from expunge.service.infra.tables import Model, Version
from expunge.service.models import model_lease
from expunge.service.queue import Deletions, ForgottenCount, TakenLease
from expunge.workers.app import Worker
from expunge.workers.guarantee.certify import certify, generator, refine
from expunge.workers.runtime.process import Process
from expunge.workers.storage.private_state import VectorStore
from expunge.workers.update import run
from unlearning.accounting.policy import Policy
from unlearning.model.training import train
from unlearning.types import ForgetSet

SAMPLES = tuple(int(each) for each in os.environ.get("BENCH_SAMPLES", "10000,100000").split(","))
UPDATES = 7
EACH = 5
"""samples of one person"""
RECIPE = """
from pathlib import Path

import torch
import unlearning as ul

def recipe():
    random = torch.Generator().manual_seed(0)
    n, people = {samples}, {people}
    inputs = torch.randn(n, 20, generator=random)
    truth = torch.randn(20, 5, generator=random)
    targets = (inputs @ truth + 2.0 * torch.randn(n, 5, generator=random)).argmax(dim=1)
    ids = [f"s{{index}}" for index in range(n)]
    subjects = [f"p{{index % people}}" for index in range(n)]
    gone = Path(__file__).with_name("gone")
    person = gone.read_text() if gone.exists() else ""
    x, y = inputs, targets
    if person:
        kept = [index for index, name in enumerate(subjects) if name != person]
        ids, subjects = [ids[index] for index in kept], [subjects[index] for index in kept]
        x, y = x[kept], y[kept]
    return ul.Recipe(
        model=lambda: torch.nn.Linear(20, 5, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=x, targets=y),
        holdout=(inputs[:500], targets[:500]),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=0.01, converge=1e-8),
    )
"""
Sides: TypeAlias = dict[str, list[float]]
SHOWN = {
    "update": "update",
    "fresh": "update in a fresh worker",
    "gone": "update in a fresh worker, of somebody who is gone at the source",
}
COMPARED = (
    ("update", "maths", "<= 1.5"),
    ("update", "retraining", "<= 1.0"),
    ("update", "scikit-learn", "reported"),
    ("fresh", "retraining", "<= 1.0"),
    ("gone", "retraining", "reported"),
)
PROVED = {"method": "newton", "guarantee": "proved", "max_accuracy_drop": None}


def rows() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    for samples in SAMPLES:
        sides = measured(samples)
        for mine, other, target in COMPARED:
            if not sides[other]:
                continue
            ratio = statistics.median(sides[mine]) / statistics.median(sides[other])
            name = f"forgetting one person in a converged head, n = {samples:,}: {SHOWN[mine]} / {other}"
            yield {"name": name, "value": ratio, "target": target, "unit": "CPU ratio", "sides": sides}
    turned = in_turn(SAMPLES[-1])
    yield {
        "name": f"updates of two converged heads in turn, n = {SAMPLES[-1]:,} / of one, warm",
        "value": statistics.median(turned["in turn"]) / statistics.median(turned["one"]),
        "target": "<= 1.1",
        "unit": "CPU ratio",
        "sides": turned,
    }


def measured(samples: int) -> Sides:
    with tempfile.TemporaryDirectory() as folder:
        people = samples // EACH
        process, model_id = live(Path(folder), None, RECIPE, PROVED, samples=samples, people=people)
        sides: Sides = {each: [] for each in (*SHOWN, "first", "maths", "retraining", "scikit-learn")}
        for person in range(3 * UPDATES + 1):
            kind = ("gone", "fresh", "update")[person % 3] if person else "first"
            if kind != "update":
                busy = worker(process)
            delete(process, f"p{person}")
            (Path(folder) / "gone").write_text(f"p{person}" if kind == "gone" else "")
            if kind == "update":
                against(process, busy, model_id, range(person, samples, people), sides)
            sides[kind].append(cpu(partial(busy.work, model_id)))
            require_published(process, model_id, person + 2)
        process.storage.close()
    return sides


def in_turn(samples: int) -> Sides:
    """Seconds of updates of two models that one worker alternates between, and of one that another stays with."""
    with tempfile.TemporaryDirectory() as folder:
        people = samples // EACH
        process, first = live(Path(folder), None, RECIPE, PROVED, samples=samples, people=people)
        models = [first, another(process, "second", PROVED), another(process, "third", PROVED)]
        turning, staying = worker(process), worker(process)
        work = [(turning, "in turn"), (turning, "in turn"), (staying, "one")]
        sides: Sides = {"in turn": [], "one": []}
        for person in range(UPDATES + 1):
            for (busy, kind), model_id, name in zip(work, models, ("m", "second", "third"), strict=True):
                delete(process, f"p{person}", name)
                seconds = cpu(partial(busy.work, model_id))
                sides[kind] += [seconds] if person else []  # the first reads the recipe
                require_published(process, model_id, person + 2)
        process.storage.close()
    return sides


def against(process: Process, busy: Worker, model_id: str, going: Sequence[int], sides: Sides) -> None:
    """Time the other sides of the update that forgets the positions ``going``, on the samples that the worker keeps."""
    with process.storage.database.read() as session:
        model = session.get_one(Model, model_id)
        assert model.current_id is not None and model.generation_id is not None
        policy = Policy.from_json(model.policy).in_force("newton")
        lease = TakenLease(model_lease(model_id), 0)
        job = Deletions(lease, TENANT, model.name, model.recipe, policy, model.generation_id, model.current_id, ())
        current = run.current_of(session, job)
    bench, left, _ = busy._benches.of(job.generation_id, TENANT, job.recipe, policy)
    assert left is not None and left.version_id == job.current_id and left.samples is not None
    retain = left.samples.without(going).examples
    vectors = VectorStore(process.storage.database, process.storage.keys, job.generation_id, 0, bench.problem.device)
    forget = ForgetSet(frozenset({"somebody"}), tuple(going), None, vectors)

    def maths() -> None:
        result = bench.method.forget(bench.problem, left.state, forget, retain, generator(torch.device("cpu")))
        certify(bench, current.terms, refine(bench, current.terms, result, retain), retain, ForgottenCount(EACH, 1, 1))

    sides["maths"].append(cpu(maths))
    sides["retraining"].append(cpu(lambda: train(bench.problem, retain)))
    sides["scikit-learn"].extend(scikit_learn(retain.inputs, retain.targets))


def scikit_learn(inputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """Seconds of its logistic regression from the beginning, to the same tolerance; empty where it is missing."""
    try:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 (the benchmark alone, where installed)
        from threadpoolctl import threadpool_limits  # noqa: PLC0415
    except ModuleNotFoundError:
        return []
    x, y = inputs.double().numpy(), targets.numpy()
    fit = LogisticRegression(C=1 / (0.01 * len(x)), tol=1e-8, fit_intercept=False, max_iter=1000)
    with threadpool_limits(1):
        return [cpu(lambda: fit.fit(x, y))]


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def require_published(process: Process, model_id: str, number: int) -> None:
    with process.storage.database.read() as session:
        version = session.get_one(Version, session.get_one(Model, model_id).current_id)
        if version.number != number:
            raise RuntimeError(f"version {version.number} is current, and not {number}: the update was not published")
