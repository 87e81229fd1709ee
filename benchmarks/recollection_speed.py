"""Preparing recollections: the published per-sample loop beside the sketch and beside the batched exact form.

``python -m benchmarks.recollection_speed`` prints the table, with ``--json`` one row a line; ``--plot FILE`` measures
the speed-up against n alone and draws it (needs matplotlib). CPU seconds of one thread, both sides in one run, the
median of ``REPEATS`` runs.

The loop is written from the paper (HF, arXiv 2404.01712, eq. 8-10) the way its authors run it: at every step the graph
of the batch gradient is built once, then each sample takes one Hessian-vector product by a second backward pass. Its
time is measured for the first ``SUBSET`` samples: what these cost beyond the graphs is multiplied by n / ``SUBSET``.
``check_rows`` runs it in full on small models beside the fast paths and compares the numbers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.digits import digits
from benchmarks.papers.images import folder
from expunge_lab.methods.recollection_sketch import RecollectionSketch
from unlearning import Problem, Recipe, Samples, Training
from unlearning.methods.recollection import Recollection
from unlearning.model.curvature import hessian_products
from unlearning.model.training import replay, train
from unlearning.types import Examples, ForgetSet, Learned, State, Vectors

REPEATS = 3
SUBSET = 40
"""samples that the loop is timed on"""
REQUESTS, PEOPLE = 20, 10
"""requests drawn from the subset to measure the error of sums, and people in each"""
SHARES, DRAWS = (0.01, 0.05, 0.2), 3
"""shares of all people whose deletion is compared with retraining, and draws of each"""
SIZES = (500, 1000, 2000, 4000, 8000)
PAPER = Training(epochs=50, learning_rate=0.05, decay=0.995)
"""the paper's setting on MNIST: full batch, 50 epochs"""
SEED = 20_240_613
Row = dict[str, object]


def rows() -> Iterator[Row]:
    """Every measurement of this file."""
    torch.set_num_threads(1)
    yield from check_rows()
    yield from digits_rows()
    yield from softmax_rows()
    yield from network_rows()
    yield from scaling_rows(scaling())


@dataclass(frozen=True)
class Trained:
    """A model and its training."""

    problem: Problem
    examples: Examples
    learned: Learned

    @property
    def count(self) -> int:
        return len(self.examples)

    def request(self, positions: Sequence[int]) -> ForgetSet:
        given = self.examples.only(torch.tensor(sorted(positions)))
        return ForgetSet(frozenset(given.people), tuple(sorted(positions)), given)


@dataclass(frozen=True)
class Loop:
    """CPU ``seconds`` for all n samples, scaled from the ``measured`` ones, and the vectors (len(who), d)."""

    seconds: float
    measured: float
    vectors: Tensor


def check_rows() -> Iterator[Row]:
    """The whole loop, every sample, beside the exact batched form and the sketch with every direction kept."""
    for name, model in (("softmax regression", softmax), ("network", network)):
        case = trained(model, 150, replace(PAPER, epochs=8, weight_decay=1e-3))
        slow = loop(case, range(case.count)).vectors
        published = Recollection(carried_by="everyone")
        state = published.prepare(case.problem, case.examples, case.learned)
        exact = torch.stack([state.vectors[person] for person in case.examples.people])
        full = RecollectionSketch(rank=150, oversampling=1.0)
        kept = full.sketched(case.problem, case.examples, case.learned, SEED)
        moved = torch.stack([correction(case, full, kept, [position]) for position in range(0, 150, 10)])
        for path, fast, twin in (("batched", exact, slow), ("sketch of full rank", moved, slow[::10])):
            gap = float((fast - twin).norm() / twin.norm())
            yield row(f"{name}, n = 150, {path}: difference from the loop", gap, "<= 1e-4", "relative", loop=150)


def digits_rows() -> Iterator[Row]:
    """The recipe that ships: 1,437 digits of 100 people, one vector each, by the same descent and as registered."""
    shipped = digits()
    descent = replace(shipped, training=replace(shipped.training, converge=None))
    for name, chosen in (("by descent alone", descent), ("as registered (converged)", shipped)):
        problem = Problem(chosen)
        examples = chosen.samples.examples()
        case = Trained(problem, examples, train(problem, examples))
        method = Recollection()
        fast = median_seconds(lambda m=method, c=case: m.prepare(c.problem, c.examples, c.learned))  # type: ignore[misc]
        slow = median_loop(case, range(SUBSET))
        yield row(
            f"exact, digits recipe, {name}, 100 people of 1,437 samples: loop / preparation with its calibration",
            slow.seconds / fast,
            ">= 10",
            "x CPU",
            loop=slow.seconds,
            loop_measured=slow.measured,
            loop_samples=SUBSET,
            preparation=fast,
        )


def softmax_rows() -> Iterator[Row]:
    """Softmax regression on 4,000 images."""
    case = trained(softmax, 4000, PAPER)
    slow = median_loop(case, range(SUBSET))
    for rank, faster, error in ((64, 50, 0.2), (128, 25, 0.1)):
        sketch = RecollectionSketch(rank=rank)
        name = f"softmax regression, n = 4,000, r = {rank}"
        yield from sketch_rows(name, case, sketch, slow, faster=faster, smaller=30 if rank == 64 else None)
        state = sketch.sketched(case.problem, case.examples, case.learned, SEED)
        errors = sum_errors(case, sketch, state, slow.vectors)
        yield row(f"{name}: error of sums of {PEOPLE}", statistics.mean(errors), f"<= {error}", "relative", each=errors)


def network_rows(count: int = 4000) -> Iterator[Row]:
    """A network of one hidden layer of 16."""
    case = trained(network, count, PAPER)
    slow = median_loop(case, range(SUBSET))
    sketch, name = RecollectionSketch(rank=64), f"network 784-16-10, n = {count:,}, r = 64"
    yield from sketch_rows(name, case, sketch, slow, faster=12, smaller=25)
    state = sketch.sketched(case.problem, case.examples, case.learned, SEED)
    errors = sum_errors(case, sketch, state, slow.vectors)
    yield row(f"{name}: error of sums of {PEOPLE}", statistics.mean(errors), "reported", "relative", each=errors)
    for share in SHARES:
        ours, theirs, nothing = distances(case, sketch, state, round(share * count))
        yield row(
            f"{name}: distance to retraining without {share:.0%} / exact recollection's",
            statistics.mean(ours) / statistics.mean(theirs),
            "reported",
            "ratio",
            sketch=ours,
            exact=theirs,
            doing_nothing=nothing,
        )


def scaling(sizes: Sequence[int] = SIZES) -> list[tuple[int, float, float]]:
    """(n, the loop's seconds, the sketch's seconds) for softmax regression at r = 64."""
    found = []
    for size in sizes:
        case = trained(softmax, size, PAPER)
        slow = median_loop(case, range(SUBSET))
        fast = median_seconds(lambda c=case: RecollectionSketch().sketched(c.problem, c.examples, c.learned, SEED))  # type: ignore[misc]
        found.append((size, slow.seconds, fast))
    return found


def scaling_rows(found: Sequence[tuple[int, float, float]]) -> Iterator[Row]:
    for size, slow, fast in found:
        name = f"softmax regression, n = {size:,}, r = 64: loop / sketch"
        yield row(name, slow / fast, "reported", "x CPU", loop=slow, sketch=fast)
    sizes = np.log([size for size, _, _ in found])
    slope = float(np.polyfit(sizes, np.log([slow / fast for _, slow, fast in found]), 1)[0])
    name = "speed-up against n = 500..8,000: exponent of the fitted power (1: proportional)"
    yield row(name, slope, ">= 1", "exponent", sizes=list(SIZES))


def sketch_rows(
    name: str, case: Trained, sketch: RecollectionSketch, slow: Loop, *, faster: int, smaller: int | None
) -> Iterator[Row]:
    seconds = [
        cpu_seconds(lambda: sketch.sketched(case.problem, case.examples, case.learned, SEED)) for _ in range(REPEATS)
    ]
    yield row(
        f"{name}: loop / sketch",
        slow.seconds / statistics.median(seconds),
        f">= {faster}",
        "x CPU",
        loop=slow.seconds,
        loop_measured=slow.measured,
        loop_samples=SUBSET,
        sketch=seconds,
    )
    state = sketch.sketched(case.problem, case.examples, case.learned, SEED)
    vectors = sum(vector.nbytes for vector in state.vectors.values())
    shared = sum(tensor.nbytes for tensor in state.tensors.values())
    published = 4 * case.count * case.problem.dimension
    yield row(
        f"{name}: bytes stored, loop / sketch",
        published / (vectors + shared),
        "reported" if smaller is None else f">= {smaller}",
        "x bytes",
        loop=published,
        sketch_rows=vectors,
        sketch_shared=shared,
    )


def sum_errors(case: Trained, sketch: RecollectionSketch, state: State, exact: Tensor) -> list[float]:
    """||a~ - a|| / ||a|| of sums over requests drawn from those whose exact vectors the loop gave."""
    errors = []
    for chosen in requests(len(exact)):
        wanted = exact[chosen].sum(dim=0)
        errors.append(float((correction(case, sketch, state, chosen) - wanted).norm() / wanted.norm()))
    return errors


def distances(
    case: Trained, sketch: RecollectionSketch, state: State, size: int
) -> tuple[list[float], list[float], list[float]]:
    """Distance to the fixed-denominator retraining: after the sketch, after exact recollection, after nothing."""
    ours, theirs, nothing = [], [], []
    generator = torch.Generator().manual_seed(6)
    for _ in range(DRAWS):
        chosen = torch.randperm(case.count, generator=generator)[:size].sort().values
        retrained = train(case.problem, case.examples, omit=chosen.tolist(), reference="fixed-denominator").weights
        gap = retrained - case.learned.weights
        ours.append(float((gap - correction(case, sketch, state, chosen.tolist())).norm()))
        theirs.append(float((gap - exact_sum(case, chosen)).norm()))
        nothing.append(float(gap.norm()))
    return ours, theirs, nothing


def exact_sum(case: Trained, chosen: Tensor) -> Tensor:
    """The exact recollection (d,) of all samples ``chosen`` together: the recursion is linear."""
    problem, path = case.problem, case.learned.trajectory
    assert path is not None
    total = torch.zeros(1, problem.dimension)
    for step, w, batch in replay(problem, case.examples, path):
        change = hessian_products(problem, w, batch.inputs, batch.targets, total) + problem.decay * total
        mine = problem.gradient(w, batch.inputs[chosen], batch.targets[chosen]) * (len(chosen) / len(batch))
        total = total - path.rates[step] * (change - mine)
    return total[0]


def requests(among: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randperm(among, generator=generator)[:PEOPLE].tolist() for _ in range(REQUESTS)]


def correction(case: Trained, sketch: RecollectionSketch, state: State, positions: Sequence[int]) -> Tensor:
    """a~ (d,). The tolerance is lifted: what is measured here must not depend on what would be refused."""
    lifted = replace(sketch, tolerance=math.inf)
    request = replace(case.request(positions), vectors=Vectors(state.vectors))
    return lifted.forget(case.problem, state, request, None, torch.Generator()).state.weights - state.weights


# The published way


def loop(case: Trained, who: Sequence[int]) -> Loop:
    """Recollections of the samples ``who``, one Hessian-vector product for each at every step."""
    net = case.problem.recipe.model()
    parameters = list(net.parameters())
    inputs, targets = case.examples.inputs, case.examples.targets
    path = case.learned.trajectory
    assert path is not None
    assert not any(scale < 1.0 for scale in path.scales)
    kept = [[torch.zeros_like(parameter) for parameter in parameters] for _ in who]
    graphs, start = 0.0, time.process_time()
    for batch, rate, w in zip(path.batches, path.rates, path.checkpoints, strict=False):
        began = time.process_time()
        nn.utils.vector_to_parameters(w, parameters)
        penalty = 0.5 * case.problem.training.weight_decay * sum(p.square().sum() for p in parameters)
        objective = F.cross_entropy(net(inputs[batch]), targets[batch]) + penalty
        slopes = torch.autograd.grad(objective, parameters, create_graph=True)
        graphs += time.process_time() - began
        for place, position in enumerate(who):
            products = torch.autograd.grad(slopes, parameters, kept[place], retain_graph=True)
            mine = F.cross_entropy(net(inputs[position : position + 1]), targets[position : position + 1])
            gradient = torch.autograd.grad(mine, parameters)
            for value, product, source in zip(kept[place], products, gradient, strict=True):
                value.sub_(rate * product).add_(source, alpha=rate / len(batch))
    measured = time.process_time() - start
    vectors = torch.stack([torch.cat([value.reshape(-1) for value in values]) for values in kept])
    return Loop(graphs + (measured - graphs) * case.count / len(who), measured, vectors)


def median_loop(case: Trained, who: Sequence[int]) -> Loop:
    runs = sorted((loop(case, who) for _ in range(REPEATS)), key=lambda run: run.seconds)
    return runs[len(runs) // 2]


# Models, data, time


def softmax() -> nn.Module:
    return nn.Linear(784, 10)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 16), nn.Tanh(), nn.Linear(16, 10))


def trained(model: Callable[[], nn.Module], count: int, training: Training) -> Trained:
    inputs, targets = images(count)
    names = [f"image-{index:04d}" for index in range(count)]
    recipe = Recipe(model, Samples(names, names, inputs, targets), images(10), "cross_entropy", training)
    problem, examples = Problem(recipe), recipe.samples.examples()
    return Trained(problem, examples, train(problem, examples))


def images(count: int) -> tuple[Tensor, Tensor]:
    """The first ``count`` of 10,000 MNIST images, (count, 784) in [0, 1], and their classes (count,)."""
    place = folder()
    pixels = np.frombuffer(gzip.decompress((place / "images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    classes = np.frombuffer(gzip.decompress((place / "labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    inputs = torch.tensor(pixels.reshape(-1, 784)[:count] / 255.0, dtype=torch.float32)
    return inputs, torch.tensor(classes[:count].astype(np.int64))


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def median_seconds(work: Callable[[], object]) -> float:
    return statistics.median(cpu_seconds(work) for _ in range(REPEATS))


def row(name: str, value: float, target: str, unit: str, **sides: object) -> Row:
    return {"name": name, "value": value, "target": target, "unit": unit, "met": met(value, target), "sides": sides}


def met(value: float, target: str) -> bool | None:
    """Whether ``value`` satisfies ``>= x`` or ``<= x``; None for any other target."""
    sign, _, limit = target.partition(" ")
    if sign not in (">=", "<="):
        return None
    return value >= float(limit) if sign == ">=" else value <= float(limit)


def line_of(measured: Row) -> str:
    verdict = {True: "met", False: "NOT met", None: ""}[measured["met"]]  # type: ignore[index]
    return f"{measured['value']:12.4g} {measured['unit']:10} {measured['target']:9} {verdict:8} {measured['name']}"


def plot(found: Sequence[tuple[int, float, float]], file: str) -> None:
    """Speed-up against n, with the line of proportionality through the largest n."""
    import matplotlib  # noqa: PLC0415  (nothing but this drawing needs it)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    sizes = [size for size, _, _ in found]
    ratios = [slow / fast for _, slow, fast in found]
    figure, axes = pyplot.subplots(figsize=(6, 4), dpi=150)
    axes.loglog(sizes, ratios, "o-", label="measured")
    axes.loglog(sizes, [ratios[-1] * size / sizes[-1] for size in sizes], ":", color="grey", label="proportional to n")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("people = samples n")
    axes.set_ylabel("CPU time, published loop / sketch")
    axes.set_title("Softmax regression on MNIST, 50 full-batch steps, r = 64, m = 32", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--plot", metavar="FILE", help="measure the speed-up against n, and draw it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = scaling() if arguments.plot else None
    for measured in rows() if found is None else scaling_rows(found):
        print(json.dumps(measured) if arguments.json else line_of(measured), flush=True)
    if found is not None:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
