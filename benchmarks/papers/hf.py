"""HF, "Hessian-free recollection" (arXiv 2404.01712): figures 2a and 2b, the ablations, figure 8 and table 1.

The vectors are the published ones (``carried_by="everyone"``), which add: the vector of a group of images is the sum of
the images' vectors. So the images of a draw belong to a few groups that go together, and one vector a group is
computed; only table 1, whose subject is time and memory, keeps a vector for every image. Retraining keeps |B_t| as
denominator (the paper's eq. 5). Pearson's and Spearman's coefficients are those of the forgotten images' loss changes,
one number an image: what the unlearned model says against what the retrained one says.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.papers.hf_ablations import ablations
from benchmarks.papers.hf_online import figure_8, table_1
from benchmarks.papers.images import Images, digits, mnist
from benchmarks.papers.row import Paper, Row, at_least, at_most, not_run
from benchmarks.papers.scene import (
    DRAWN,
    NETWORK,
    SOFTMAX,
    TEST_SPLIT,
    VECTORS,
    Scene,
    Size,
    convolutional,
    drawn,
    linear,
)
from expunge_lab.experiment.comparators.newton_step import DAMPING, infinitesimal_jackknife, newton_step
from unlearning.types import State

PAPER = Paper(
    name="hf",
    title="HF: Hessian-free recollection",
    link="https://arxiv.org/abs/2404.01712",
    promised="A vector is kept for each person while the model is trained. To forget somebody, the vector is added to "
    "the weights, which takes a millisecond. The result is said to lie nearer to retraining than a Newton step (NS) "
    "and the infinitesimal jackknife (IJ), two older methods that need the curvature of the whole model, to predict "
    "how the loss of each forgotten image changes, and to stay near even for a network.",
    measured='All rows use the published vectors, `carried_by="everyone"`; the product\'s default is `others`. For '
    "softmax regression the promise holds: after 100 epochs and 30 % forgotten the distance is 0.119, where the paper "
    "has 0.172, and the losses of the forgotten images are foretold as well as it says. NS and IJ, by the paper's "
    "formulas and damping, end 6.2 and 1.2 away, further than doing nothing (0.46); the paper prints 0.178 for both, "
    "which we could not repeat. For the network the promise is weak: at 30 % forgotten the distance is below the "
    "paper's 0.96, yet 95 % of what doing nothing leaves (71 % with raw pixels), and the losses are foretold less "
    "well than it says. From step size 0.5 on full batches recollection does harm, as the paper warns of large steps, "
    "and two repair steps do not mend that; with smaller steps or clipping there was nothing to repair. Table 1's "
    "speed-up is 1,100 to 1,800 here, by the machine, and not 448,060: by the paper's own figures a retraining takes "
    "6 seconds there and 0.12 here, an addition 14 microseconds there and 70 here.",
    seconds=720,
)
SHARES = (0.01, 0.05, 0.20, 0.30)
NAMES = {"distance": "distance to retraining", "pearson": "Pearson's coefficient", "spearman": "Spearman's coefficient"}
NUMBERS = {
    "linear": {"distance": 0.171638, "pearson": 0.96, "spearman": 0.95},
    "network": {"distance": 0.96, "pearson": 0.74, "spearman": 0.80},
}
"""what section 5.1 prints for 30 % deleted; everything else in figure 2 is drawn"""
OLDER = {"NS": 0.178246, "IJ": 0.178244}
"""the distances that it prints for the other two, softmax regression, 30 % deleted"""
OURS, UNTOUCHED, NS, IJ = "recollection", "doing nothing", "NS", "IJ"
Found = Mapping[str, Mapping[str, float]]
"""who moved the weights -> what was measured -> the figure"""


FULL = Size(
    images=mnist,
    count=1000,
    seeds=(0, 1, 2),
    epochs=(100, 50),
    network=NETWORK,
    rates=(0.001, 0.01, 0.05, 0.1, 0.5, 1.0),
    passes=(10, 25, 50, 100),
    decays=(0.995, 1.0),
    counts=(500, 1000, 2000, 4000),
    rounds=2,
    products=300,
    single=1000,
)
SMALL = replace(
    FULL,
    images=digits,
    count=150,
    epochs=(2,),
    network=replace(NETWORK, epochs=1, batch_size=None),
    rates=(0.01,),
    passes=(1, 2),
    decays=(1.0,),
    counts=(30,),
    rounds=1,
    products=4,
    single=10,
)


def rows(size: Size) -> Iterator[Row]:
    """Yield every row of the paper, the cheap ones first."""
    images = size.images()
    for epochs in size.epochs:
        yield from figure_2a(size, images, epochs)
    yield from ablations(size, images)
    yield from table_1(size, images)
    yield from figure_2b(size, images, "normalised")
    yield from figure_2b(size, images, "raw")
    yield from figure_8(size, images)
    yield from waiting()


def figure_2a(size: Size, images: Images, epochs: int) -> Iterator[Row]:
    """Return how near recollection, NS and IJ come to a retraining of softmax regression, for each share deleted."""
    start = time.process_time()
    chosen = images.normalised().first(size.count)
    found: list[list[Found]] = []
    for seed in size.seeds:
        training = replace(SOFTMAX, epochs=epochs, seed=seed)
        scene = Scene.of(linear, chosen, training, drawn(size.count, SHARES, seed))
        found.append(compared(scene, size.products))
    spent = (time.process_time() - start) / (3 * len(SHARES))
    place = f"figure 2a, {epochs} epochs"
    measures = tuple(NAMES) if epochs == size.epochs[0] else ("distance",)
    for at, share in enumerate(SHARES):
        for measure in measures:
            # section 5.1 prints the numbers of 100 epochs and 30 %; no other setting of the figure has one
            number = NUMBERS["linear"][measure] if share == SHARES[-1] and epochs == size.epochs[0] else None
            yield closeness_row(place, [each[at] for each in found], share, measure, number, spent)
    if epochs == size.epochs[0]:
        yield from older_rows(place, [each[-1] for each in found], epochs, spent)


def older_rows(place: str, found: Sequence[Found], epochs: int, seconds: float) -> Iterator[Row]:
    """Compare NS and IJ, computed by the paper's formulas and damping, with what it prints for them."""
    stretched = sum(SOFTMAX.learning_rate * SOFTMAX.decay**step for step in range(epochs))
    for name, number in OLDER.items():
        ours = tuple(each[name]["distance"] for each in found)
        yield Row(
            place=f"{place}, {SHARES[-1]:.0%} deleted",
            measured=f"distance to retraining, {name}",
            published=f"{number:g}",
            ours=ours,
            differs=TEST_SPLIT,
            goal=at_most(number),
            why=f"in flat directions {name} lengthens a gradient up to 1/damping = {1 / DAMPING:.0f} times, and the "
            f"training by no more than the sum of its step sizes, {stretched:.1f}",
            seconds=seconds,
            nothing=statistics.mean(each[UNTOUCHED]["distance"] for each in found),
            retrained=0.0,
        )


def figure_2b(size: Size, images: Images, pixels: str) -> Iterator[Row]:
    """Compare on the network, with pixels normalised as in the paper's code or raw in [0, 1]."""
    start = time.process_time()
    chosen = (images.normalised() if pixels == "normalised" else images).first(size.count)
    found: list[list[Found]] = []
    for seed in size.seeds:
        training = replace(size.network, seed=seed)
        scene = Scene.of(convolutional, chosen, training, drawn(size.count, SHARES, seed))
        found.append(compared(scene, 0))
    spent = (time.process_time() - start) / (3 * len(SHARES))
    for at, share in enumerate(SHARES):
        for measure in NAMES:
            place = f"figure 2b, {pixels} pixels"
            number = NUMBERS["network"][measure] if share == SHARES[-1] else None
            row = closeness_row(place, [each[at] for each in found], share, measure, number, spent)
            yield replace(row, differs=f"{row.differs}; no dropout")


def compared(scene: Scene, products: int) -> list[Found]:
    """Return what each leaves at each share; NS and IJ are left out where they may take no ``products``."""
    state = scene.state(len(SHARES))
    return [compared_at(scene, state, place, products) for place in range(len(SHARES))]


def compared_at(scene: Scene, state: State, share: int, products: int) -> Found:
    gone = scene.gone(share)
    retrained = scene.retrained(gone)
    w = scene.learned.weights
    moved = {UNTOUCHED: w, OURS: scene.recollected(state, gone)}
    for name, step in ((NS, newton_step), (IJ, infinitesimal_jackknife)):
        if products:
            change = step(scene.problem, w, scene.examples, gone.positions, residual=1e-3, products=products).change
            moved[name] = w + change
    return {name: scene.closeness(weights, retrained, gone) for name, weights in moved.items()}


def closeness_row(  # noqa: PLR0917  (one figure's cell)
    place: str, found: Sequence[Found], share: float, measure: str, number: float | None, seconds: float
) -> Row:
    """Return the row of one figure. ``number``: what the paper prints for it; None: it is drawn."""
    ours = tuple(each[OURS][measure] for each in found)
    others = {
        name: statistics.mean(each[name][measure] for each in found)
        for name in (UNTOUCHED, NS, IJ)
        if measure in found[0].get(name, {})
    }
    near = measure == "distance"
    beaten = "nearest of the three" if near else "highest of the three"
    aim = at_most if near else at_least
    return Row(
        place=f"{place}, {share:.0%} deleted",
        measured=NAMES[measure],
        published=f"{number:g}" if number is not None else DRAWN.format(beaten),
        ours=ours,
        differs=VECTORS,
        goal=None if number is None else aim(number),
        why="; ".join([f"{left(found):.2f} of the distance is left"] + [f"{n} {v:.3g}" for n, v in others.items()]),
        seconds=seconds,
        nothing=others[UNTOUCHED] if near else 0.0,  # it foretells no change of any loss
        retrained=0.0 if near else 1.0,  # the coefficients are of its own losses
    )


def left(found: Sequence[Found]) -> float:
    """Return recollection's mean distance as a share of doing nothing's."""
    ours, untouched = (statistics.mean(each[name]["distance"] for each in found) for name in (OURS, UNTOUCHED))
    return ours / untouched


def waiting() -> Iterator[Row]:
    """Yield what two cores cannot repeat, or cannot repeat in minutes."""
    gpu = "Needs a GPU and the data set, neither of which is here."
    yield not_run(
        "figure 2b and figure 3, NS and IJ",
        "distance and coefficients",
        "drawn",
        "Needs the network's Hessian and its inverse, 21,840 x 21,840 numbers (3.8 GB in float64), and "
        "21,840 products for it: about two hours of one core for each seed.",
    )
    yield not_run(
        "table 1, MNIST, convolutional network, one vector an image",
        "seconds",
        "pre-computation 5.34",
        "Needs 1,000 vectors through 320 steps of 64 images: about an hour of one core.",
    )
    yield not_run(
        "table 1, Fashion-MNIST",
        "time, storage and accuracy of two networks",
        "accuracy 77.85 and 78.63",
        "Needs Fashion-MNIST, which is not here.",
    )
    yield not_run("figure 4", "ResNet-18 on CelebA: time and accuracy", "drawn", gpu)
    yield not_run("table 2", "ResNet-18 on CIFAR-10: distance to retraining", "0.09", gpu)
    yield not_run(
        "figures 5b, 6b and 7b",
        "ablations of the network",
        "drawn",
        "Needs about twenty more trainings of the network with their vectors: two hours of one core.",
    )
