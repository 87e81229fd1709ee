"""Forgetting one person in a converged linear head: the whole update against its maths, and against training again.

``python -m benchmarks converged_update``. CPU seconds of this process with one thread; the sides run alternately. The
update is everything that a notification starts, on SQLite: claim, recipe, samples, maths, noise, files, transaction,
keys. The maths are the method, the refinement, the bound and the noise on samples that are in memory. The retraining
starts from the beginning, on samples that are in memory too. The first update of a process reads the recipe and
compares every sample; ``first`` in ``sides``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.release import TENANT, delete, live, worker
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
import torch
import unlearning as ul

def recipe():
    random = torch.Generator().manual_seed(0)
    n, people = {samples}, {people}
    inputs = torch.randn(n, 20, generator=random)
    truth = torch.randn(20, 5, generator=random)
    targets = (inputs @ truth + 2.0 * torch.randn(n, 5, generator=random)).argmax(dim=1)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(20, 5, bias=False),
        samples=ul.Samples(
            ids=[f"s{{index}}" for index in range(n)],
            subjects=[f"p{{index % people}}" for index in range(n)],
            inputs=inputs,
            targets=targets,
        ),
        holdout=(inputs[:500], targets[:500]),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=0.01, converge=1e-8),
    )
"""
Sides: TypeAlias = dict[str, list[float]]
PROVED = {"method": "newton", "guarantee": "proved", "max_accuracy_drop": None}


def rows() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    for samples in SAMPLES:
        sides = measured(samples)
        update = statistics.median(sides["update"])
        for other, target in (("maths", "<= 1.5"), ("retraining", "<= 1.0"), ("scikit-learn", "reported")):
            if not sides[other]:
                continue
            ratio = update / statistics.median(sides[other])
            name = f"forgetting one person in a converged head, n = {samples:,}: update / {other}"
            yield {"name": name, "value": ratio, "target": target, "unit": "CPU ratio", "sides": sides}


def measured(samples: int) -> Sides:
    with tempfile.TemporaryDirectory() as folder:
        people = samples // EACH
        process, model_id = live(Path(folder), None, RECIPE, PROVED, samples=samples, people=people)
        busy = worker(process)
        sides: Sides = {"first": [], "update": [], "maths": [], "retraining": [], "scikit-learn": []}
        for person in range(UPDATES + 1):
            delete(process, f"p{person}")
            if person:
                against(process, busy, model_id, range(person, samples, people), sides)
            sides["update" if person else "first"].append(cpu(lambda: busy.work(model_id)))
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
    bench = busy._benches.of(job.generation_id, TENANT, job.recipe, policy)
    state, found = busy._benches.state_of(current.version.state), busy._benches.samples_of(job.current_id)
    assert state is not None and found is not None
    retain = found.without(going).examples
    vectors = VectorStore(process.storage.database, process.storage.keys, job.generation_id, 0, bench.problem.device)
    forget = ForgetSet(frozenset({"somebody"}), tuple(going), None, vectors)

    def maths() -> None:
        result = bench.method.forget(bench.problem, state, forget, retain, generator(torch.device("cpu")))
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
