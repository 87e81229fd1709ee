"""HF's ablations on softmax regression: the distance to retraining as step size, epochs, decay and images change.

The paper draws them and prints no number, so no row has a verdict: it would compare our runs with each other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.papers.images import Images
from benchmarks.papers.row import Row
from benchmarks.papers.scene import DRAWN, SOFTMAX, VECTORS, Scene, Size, drawn, linear
from unlearning import Training
from unlearning.quality.distance_left import distance_left


def ablations(size: Size, images: Images) -> Iterator[Row]:
    """Yield the distance of softmax regression, 20 % deleted, as one setting grows, and the paper's word for it."""
    settings = {
        "step size": [(f"{rate:g}", replace(SOFTMAX, learning_rate=rate), size.count) for rate in size.rates],
        "epochs": [(f"{epochs}", replace(SOFTMAX, epochs=epochs), size.count) for epochs in size.passes],
        "q": [
            (f"{q:g}, {max(size.passes)} epochs", replace(SOFTMAX, decay=q, epochs=max(size.passes)), size.count)
            for q in size.decays
        ],
        "n": [(f"{count}", SOFTMAX, count) for count in size.counts],
    }
    promises = {
        "step size": ("8.3.1, step size", "grows with the step"),
        "epochs": ("figure 6a, epochs", "grows with the epochs"),
        "q": ("figure 7a, decay q", "larger without decay"),
        "n": ("8.3.4, images", "falls with the images"),
    }
    for name, values in settings.items():
        yield from ablation(size, images, promises[name], values)


def ablation(
    size: Size, images: Images, promise: tuple[str, str], values: Sequence[tuple[str, Training, int]]
) -> Iterator[Row]:
    place, says = promise
    for value, training, count in values:
        start = time.process_time()
        found = [
            distances_at_a_fifth(images.normalised().first(count), replace(training, seed=each)) for each in size.seeds
        ]
        ours = tuple(distance for distance, _, _ in found)
        left = statistics.mean(share for _, share, _ in found)
        yield Row(
            place=f"{place} {value}",
            measured="distance to retraining, 20 % deleted",
            published=DRAWN.format(says),
            ours=ours,
            differs=VECTORS,
            goal=None,
            why=f"distance left {left:.2g}; test accuracy {statistics.mean(a for _, _, a in found):.1%}",
            seconds=time.process_time() - start,
        )


def distances_at_a_fifth(images: Images, training: Training) -> tuple[float, float, float]:
    """Return the distance after forgetting 20 %, as a share of doing nothing's too, and the accuracy then."""
    scene = Scene.of(linear, images, training, drawn(len(images.inputs), (0.2,), training.seed))
    gone = scene.gone(0)
    retrained, moved = scene.retrained(gone), scene.recollected(scene.state(1), gone)
    accuracy = scene.problem.accuracy(moved, images.test_inputs, images.test_targets)
    return float((retrained - moved).norm()), distance_left(scene.learned.weights, moved, retrained), accuracy
