"""SAFE (arXiv 2507.15280) on MNIST: its step, its mode and its lambda, at a seventh of its images."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from benchmarks.papers.images import Images, digits, mnist
from benchmarks.papers.leaving import Scene, drawn, seconds_of
from benchmarks.papers.row import Paper, Row, at_least, at_most, not_run, within
from expunge_lab.evaluate import support_vectors
from unlearning import SGD, AdamW, Training
from unlearning.methods.safe import Safe, published_perturbation
from unlearning.types import State

PAPER = Paper(
    name="safe",
    title="SAFE: Machine Unlearning for Streaming Forgetting",
    link="https://arxiv.org/abs/2507.15280",
    promised="Requests come in rounds, and each is answered by one short step that reads the forgotten samples alone. "
    "After 20 rounds the accuracy on the forgotten is that of a retrained model, at a small loss for everyone else.",
    measured="With the paper's step, mode and lambda the forgotten end near to where a retraining has them. Everyone "
    "else loses three points, seven times the paper's loss, and a longer step loses more on both "
    "sides alike: K was tuned on the paper's models. With the step that registration chooses, after the paper's own "
    "training, those who stay keep a retraining's accuracy, as an untouched model does, and the forgotten stay two "
    "points above it. From lambda 1,000 on, the gradient of the training data no longer counts. On a logistic "
    "regression the paper's step is too long: it ends 6 to 9 points below a retraining; a quarter of it ends between "
    "3 below and 1 above. Table 10 prints 93 % on a class for the model that was retrained without it; such a model "
    "has 0 by construction. SAFE leaves the class at three to four fifths with the paper's K 2.5, and at the printed "
    "third with K 1.5, which was chosen on these images.",
    seconds=900,
)
DIVISOR = 2.5
"""the paper's K for MNIST"""
PUBLISHED = Safe(mode="keep", step="published", strength=1000.0, divisor=DIVISOR)
"""the paper's K, T = 20 and lambda = 1000 for MNIST"""
CHOSEN = replace(PUBLISHED, divisor=None)
"""the same with the K that preparation chooses of those that the paper tries"""
BY_REGISTRATION = {"as published, K chosen by registration": CHOSEN, "as served": Safe()}
SETTING = "8,000 of 60,000 images, 53 a round for 400, 4 epochs with momentum for 20 with Adam, 3 seeds for 10"
GENERATOR = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Size:
    """How much is run: the images, how many leave in a round, rounds, and epochs of a training."""

    images: Callable[[], Images]
    per_round: int
    rounds: int
    epochs: int
    seeds: int = 3
    adam_epochs: int = 20
    adam_seeds: int = 5

    @property
    def at(self) -> tuple[int, int]:
        """The rounds after which accuracies are taken: the middle one and the last."""
        return self.rounds // 2, self.rounds

    @property
    def left(self) -> tuple[int, int]:
        """How many have left after these rounds."""
        return self.rounds // 2 * self.per_round, self.rounds * self.per_round


FULL = Size(mnist, per_round=53, rounds=20, epochs=4)
SMALL = Size(lambda: digits().first(150), per_round=4, rounds=2, epochs=1, adam_epochs=1, adam_seeds=3)


def network() -> nn.Module:
    """Build a network of two convolutions, 16,490 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1152, 10),
    )


@dataclass(frozen=True)
class Streams:
    """A trained model and SAFE prepared on it, for one seed.

    ``order`` is who leaves first; ``retrainings`` holds the weights of those that were made, by how many had left.
    """

    scene: Scene
    state: State
    order: Tensor
    retrainings: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, size: Size, seed: int, model: Callable[[], nn.Module] = network) -> Streams:
        images = size.images().normalised()
        training = Training(
            epochs=size.epochs, batch_size=32, learning_rate=0.02, weight_decay=1e-4, optimizer=SGD(0.9), seed=seed
        )
        people = [str(index) for index in range(len(images.inputs))]
        scene = Scene.of(model, images, people, training)
        state = PUBLISHED.prepare(scene.problem, scene.examples, scene.learned)
        return cls(scene, state, drawn(len(people), len(people), 100 + seed))

    @classmethod
    def by_adam(cls, size: Size, seed: int, method: Safe) -> Streams:
        """Train as the paper does, but for decay beside the gradient, and prepare ``method`` on it."""
        images = size.images().normalised()
        people = [str(index) for index in range(len(images.inputs))]
        training = Training(
            epochs=size.adam_epochs,
            batch_size=32,
            learning_rate=1e-3,
            weight_decay=1e-4,
            optimizer=AdamW(),
            seed=seed,
        )
        scene = Scene.of(network, images, people, training)
        state = method.prepare(scene.problem, scene.examples, scene.learned)
        return cls(scene, state, drawn(len(people), len(people), 100 + seed))

    def prepared(self, method: Safe) -> Streams:
        """Return the same training with ``method`` prepared on it."""
        state = method.prepare(self.scene.problem, self.scene.examples, self.scene.learned)
        return replace(self, state=state)

    def retrained(self, count: int) -> Tensor:
        """Return the weights (d,) of a retraining without the first ``count`` of the order."""
        if count not in self.retrainings:
            self.retrainings[count] = self.scene.retrained(self.order[:count])
        return self.retrainings[count]

    def without(self, count: int) -> tuple[float, float, float]:
        """Return the accuracies of the model that was retrained without the first ``count``."""
        return self.scene.accuracies(self.retrained(count), self.order[:count])

    def untouched(self, count: int) -> tuple[float, float, float]:
        """Return the accuracies of the trained model where the first ``count`` count as forgotten."""
        return self.scene.accuracies(self.scene.learned.weights, self.order[:count])

    def run(self, method: Safe, rounds: Sequence[Tensor], at: Sequence[int]) -> list[tuple[float, float, float]]:
        """Return retained, forgotten and test accuracy in % after the rounds numbered in ``at`` (from 1)."""
        state, found = self.state, []
        for number, gone in enumerate(rounds, 1):
            forget = self.scene.forget_set(gone)
            state = method.forget(self.scene.problem, state, forget, None, GENERATOR).state
            if number in at:
                found.append(self.scene.accuracies(state.weights, torch.cat(list(rounds[:number]))))
        return found

    def on_average(self, method: Safe, size: Size) -> tuple[float, ...]:
        """Return the three accuracies, the mean of the middle and the last of the T rounds."""
        rounds = self.order.split(size.per_round)[: size.rounds]
        return mean_of(self.run(replace(method, rounds=size.rounds), rounds, size.at))

    def last(self, method: Safe, per_round: int) -> tuple[float, float, float]:
        """Return the three accuracies after the last of the method's T rounds."""
        rounds = self.order.split(per_round)[: method.rounds]
        return self.run(method, rounds, (len(rounds),))[0]

    def attacked(self, w: Tensor, gone: Tensor) -> float:
        """Return how many in 100 of the forgotten a classifier calls trained on: it learns from those who stay and the
        test images, at most 2,000 of each, by the model's outputs."""
        problem, stay = self.scene.problem, self.scene.examples.without(gone)
        sides = [stay.inputs[:2000], problem.recipe.holdout[0][:2000], self.scene.examples.only(gone).inputs]
        with torch.no_grad():
            inside, outside, judged = (problem.outputs(w, side).softmax(dim=1).double() for side in sides)
        count = min(len(inside), len(outside))
        labels = torch.cat([torch.ones(count), torch.zeros(count)])
        found = support_vectors(torch.cat([inside[:count], outside[:count]]), labels, judged)
        return 100 * float((found > 0).double().mean())

    def of_class(self, method: Safe, label: int) -> tuple[float, float, float, float]:
        """Return ``on_class`` once class ``label`` left, in the method's T rounds."""
        members = (self.scene.examples.targets == label).nonzero().flatten()
        state = self.state
        for gone in members.tensor_split(method.rounds):
            state = method.forget(self.scene.problem, state, self.scene.forget_set(gone), None, GENERATOR).state
        return self.on_class(state.weights, label)

    def retrained_without(self, label: int) -> tuple[float, float, float, float]:
        """Return ``on_class`` of a retraining without class ``label``."""
        return self.on_class(self.scene.retrained((self.scene.examples.targets == label).nonzero().flatten()), label)

    def on_class(self, w: Tensor, label: int) -> tuple[float, float, float, float]:
        """Return the accuracy in % on the other classes and on class ``label``, trained on and tested."""
        (x, y), problem = self.scene.problem.recipe.holdout, self.scene.problem
        retained, forgotten, _ = self.scene.accuracies(w, (self.scene.examples.targets == label).nonzero().flatten())
        tested = [100 * problem.accuracy(w, x[side], y[side]) for side in (y != label, y == label)]
        return retained, forgotten, tested[0], tested[1]


def rows(size: Size) -> Iterator[Row]:
    """Every row of this paper."""
    made: list[Streams] = []
    spent = seconds_of(lambda: made.extend(Streams.of(size, seed) for seed in range(size.seeds)))
    yield from random_rows(size, made, spent)
    yield from chosen_rows(size)
    yield from ablation_rows(size, made)
    yield from setting_rows(size, made)
    yield from step_rows(size, made)
    yield from class_rows(size, made)
    yield from perturbed_rows(size, made)
    yield from attack_rows(size, made)
    yield from regression_rows(size)
    yield from time_rows(size, made)
    yield from waiting_rows()


NAMES = ("retained", "forgotten", "test")
TABLE_1 = {"retained": (99.25, 99.68), "forgotten": (98.89, 98.89), "test": (98.58, 99.00)}


def random_rows(size: Size, made: list[Streams], spent: float) -> Iterator[Row]:
    """Table 1: accuracies, the mean of rounds 10 and 20, and their distance to retraining's."""
    ours: list[tuple[float, ...]] = []
    anew: list[tuple[float, ...]] = []
    untouched: list[tuple[float, ...]] = []

    def measure() -> None:
        for each in made:
            ours.append(each.on_average(PUBLISHED, size))
            anew.append(mean_of([each.without(count) for count in size.left]))
            untouched.append(mean_of([each.untouched(count) for count in size.left]))

    spent += seconds_of(measure)
    differs = f"{SETTING}; the mean of rounds 10 and 20, not of all 20"
    for place, name in enumerate(NAMES):
        safe, retrained = TABLE_1[name]
        yield Row(
            f"table 1, MNIST, SAFE, {name}",
            "accuracy, %",
            f"{safe} (retrained {retrained})",
            column(ours, place),
            differs,
            at_least(safe),
            "Figure 2 has shorter steps.",
            spent / 6,
            nothing=statistics.mean(column(untouched, place)),
            retrained=statistics.mean(column(anew, place)),
        )
        gap, idle = difference(ours, anew, place), difference(untouched, anew, place)
        yield Row(
            f"table 1, MNIST, SAFE, {name}",
            "accuracy less that of retraining, points",
            f"{safe - retrained:.2f}",
            gap,
            differs + "; within half a point",
            within(safe - retrained, 0.5),
            f"Untouched less retrained: {shown(idle)}.",
            spent / 6,
            nothing=statistics.mean(idle),
            retrained=0.0,
        )


def chosen_rows(size: Size) -> Iterator[Row]:
    """Table 1 in the paper's own training, with the step that registration chooses: gaps to retraining."""
    ours: dict[str, list[tuple[float, ...]]] = {name: [] for name in BY_REGISTRATION}
    chosen: dict[str, list[str]] = {name: [] for name in BY_REGISTRATION}
    anew: list[tuple[float, ...]] = []
    untouched: list[tuple[float, ...]] = []

    def measure() -> None:
        for seed in range(size.adam_seeds):
            stream = Streams.by_adam(size, seed, PUBLISHED)
            anew.append(mean_of([stream.without(count) for count in size.left]))
            untouched.append(mean_of([stream.untouched(count) for count in size.left]))
            for name, method in BY_REGISTRATION.items():
                served = stream.prepared(replace(method, rounds=size.rounds))
                ours[name].append(served.on_average(method, size))
                chosen[name].append(f"{served.state.facts['length']:g}")

    spent = seconds_of(measure)
    for name, method in BY_REGISTRATION.items():
        length = "K" if method.step == "published" else "reach"
        for place, side in enumerate(NAMES):
            safe, retrained = TABLE_1[side]
            beside = (shown(column(others, place)) for others in (ours[name], anew, untouched))
            yield Row(
                f"table 1, MNIST, after Adam, SAFE {name}, {side}",
                "accuracy less that of retraining, points",
                f"{safe - retrained:.2f} (K 2.5, tuned)",
                difference(ours[name], anew, place),
                "8,000 of 60,000 images, 53 a round for 400, 5 seeds for 10, AdamW for Adam; the mean of rounds 10 and "
                "20, not of all 20",
                at_least(safe - retrained) if side != "forgotten" else within(safe - retrained, 0.5),
                "Accuracies: SAFE {}, retrained {}, untouched {}. ".format(*beside)
                + f"Registration chose {length} {', '.join(chosen[name])}.",
                spent / 6,
                nothing=statistics.mean(difference(untouched, anew, place)),
                retrained=0.0,
            )


TABLE_2: Mapping[str, tuple[Safe, tuple[float, float, float]]] = {
    "without the training gradient": (replace(PUBLISHED, strength=1e9), (98.68, 98.12, 98.09)),
    "without the shift": (replace(PUBLISHED, strength=0.0), (99.35, 99.19, 98.71)),
    "lambda 1": (replace(PUBLISHED, strength=1.0), (0, 0, 0)),
    "lambda 1,000,000": (replace(PUBLISHED, strength=1e6), (0, 0, 0)),
}


def ablation_rows(size: Size, made: list[Streams]) -> Iterator[Row]:
    """Table 2: what is lost by leaving out either gradient, against the whole method, at the last round."""
    whole: list[tuple[float, ...]] = []
    spent = seconds_of(
        lambda: whole.extend(each.last(replace(PUBLISHED, rounds=size.rounds), size.per_round) for each in made)
    )
    anew, untouched = [each.without(size.left[-1]) for each in made], [each.untouched(size.left[-1]) for each in made]
    for name, (method, published) in TABLE_2.items():
        found: list[tuple[float, ...]] = []

        def measure(method: Safe = method, found: list[tuple[float, ...]] = found) -> None:
            found.extend(each.last(replace(method, rounds=size.rounds), size.per_round) for each in made)

        seconds = seconds_of(measure) + spent / len(TABLE_2)
        for place in range(2):
            ours = difference(found, whole, place)
            change = published[place] - (99.25, 98.89)[place]
            goal = within(change, 0.5) if published[0] else None
            yield Row(
                f"table 2, MNIST, {name}, {NAMES[place]}",
                "accuracy less that of the whole method, points",
                f"{change:.2f}" if published[0] else "",
                ours,
                f"{SETTING}; at the last round; without a gradient is lambda 0 or 1e9; within half a point",
                goal,
                f"The whole method (lambda 1,000) has {shown(column(whole, place))} %. No change means that the other "
                "gradient is too small to turn the step.",
                seconds / 2,
                nothing=statistics.mean(difference(untouched, whole, place)),
                retrained=statistics.mean(difference(anew, whole, place)),
            )


TABLE_5 = {
    (10, 1): (99.36, 99.10, 98.70),
    (10, 2): (99.35, 99.09, 98.72),
    (40, 1): (99.52, 99.04, 98.86),
    (20, 2): (99.37, 99.12, 98.73),
}


def setting_rows(size: Size, made: list[Streams]) -> Iterator[Row]:
    """Table 5: other numbers of rounds and of samples a round, with the step that theorem 2 gives them."""
    for (rounds, times), published in TABLE_5.items():
        found: list[tuple[float, ...]] = []

        def measure(rounds: int = rounds, times: int = times, found: list[tuple[float, ...]] = found) -> None:
            method = replace(PUBLISHED, rounds=method_rounds(size, rounds))
            found.extend(each.last(method, times * size.per_round) for each in made)

        seconds = seconds_of(measure)
        count = method_rounds(size, rounds) * times * size.per_round
        anew, untouched = [each.without(count) for each in made], [each.untouched(count) for each in made]
        for place, name in enumerate(NAMES[:2]):
            yield Row(
                f"table 5, MNIST, {400 * times} samples for {rounds} rounds, {name}",
                "accuracy, %",
                str(published[place]),
                column(found, place),
                f"{SETTING}; at the last round",
                at_least(published[place]),
                f"The step's length, {gamma(made, method_rounds(size, rounds)):.2f} at weights of norm "
                f"{norm(made):.1f}, follows from the rounds.",
                seconds / 2,
                nothing=statistics.mean(column(untouched, place)),
                retrained=statistics.mean(column(anew, place)),
            )


def method_rounds(size: Size, rounds: int) -> int:
    """Return how many of the paper's ``rounds`` are run."""
    return max(1, rounds * size.rounds // 20)


def step_rows(size: Size, made: list[Streams]) -> Iterator[Row]:
    """Figure 2: K of 1 to 10. The paper says that a smaller K, a longer step, costs more accuracy everywhere."""
    found: dict[float, list[tuple[float, ...]]] = {}

    def measure() -> None:
        for k in (1.0, 2.5, 5.0, 10.0):
            method = replace(PUBLISHED, divisor=k, rounds=size.rounds)
            found[k] = [each.last(method, size.per_round) for each in made]

    seconds = seconds_of(measure)
    for place, name in enumerate(NAMES[:2]):
        listed = ", ".join(f"K = {k:g}: {shown(column(each, place))}" for k, each in found.items())
        yield Row(
            f"figure 2, MNIST, {name}",
            "accuracy at K = 10 less that at K = 1, points (a longer step costs more everywhere)",
            "drawn, no number: above 0",
            difference(found[10.0], found[1.0], place),
            f"{SETTING}; at the last round",
            None,
            listed + ".",
            seconds / 2,
        )


TABLE_10 = {
    "other classes, trained on": (96.50, "99.68 ± 0.04"),
    "the class, trained on": (39.19, "93.34 ± 21.54"),
    "other classes, test": (95.96, "98.98 ± 0.21"),
    "the class, test": (30.95, "93.70 ± 21.61"),
}
"""SAFE, and retraining as it is printed. A model that never saw the class cannot have 93 % of it."""


def class_rows(size: Size, made: list[Streams]) -> Iterator[Row]:
    """Table 10: class 0 leaves in as many rounds, until nobody of it is left."""
    before = [each.on_class(each.scene.learned.weights, 0) for each in made]
    anew: list[tuple[float, ...]] = []
    retraining = seconds_of(lambda: anew.extend(each.retrained_without(0) for each in made))
    for divisor in (DIVISOR, 1.5):
        found: list[tuple[float, ...]] = []

        def measure(divisor: float = divisor, found: list[tuple[float, ...]] = found) -> None:
            method = replace(PUBLISHED, rounds=size.rounds, divisor=divisor)
            found.extend(each.of_class(method, 0) for each in made)

        seconds = seconds_of(measure) + retraining / 2
        for place, (name, (published, retrained)) in enumerate(TABLE_10.items()):
            of_class = place % 2 == 1
            yield Row(
                f"table 10, MNIST, SAFE, K {divisor:g}, {name}",
                "accuracy after 20 rounds, %",
                f"{published:.2f} (retrained {retrained})",
                column(found, place),
                f"{SETTING}; 40 images of the class a round for 300"
                + ("" if divisor == DIVISOR else f"; K {divisor:g} for {DIVISOR:g}, by trial on these images"),
                (at_most if of_class else at_least)(published),
                "The length of the step decides."
                + (" A retraining without the class has 0 by construction." if of_class else ""),
                seconds / 4,
                nothing=statistics.mean(column(before, place)),
                retrained=statistics.mean(column(anew, place)),
            )


def perturbed_rows(size: Size, made: list[Streams]) -> Iterator[Row]:
    """Theorem 2's noise at epsilon 1, delta 1e-5, which table 1 cannot have had."""
    found: list[tuple[float, ...]] = []
    method = replace(PUBLISHED, rounds=size.rounds, perturbation=published_perturbation(1.0, 1e-5))
    seconds = seconds_of(lambda: found.extend(each.last(method, size.per_round) for each in made))
    yield Row(
        "theorem 2, MNIST, with the noise b_t at epsilon 1 and delta 1e-5, test",
        "accuracy, %",
        "",
        column(found, 2),
        f"{SETTING}; at the last round",
        None,
        "The noise is 4.8 times the weights' norm in each coordinate: table 1 is not about a model with it.",
        seconds,
    )


def attack_rows(size: Size, made: list[Streams]) -> Iterator[Row]:
    """Table 1's attack after the last round: a support vector classifier, as appendix B.2 describes it."""
    ours: list[float] = []
    anew: list[float] = []
    untouched: list[float] = []

    def measure() -> None:
        for each in made:
            rounds = each.order.split(size.per_round)[: size.rounds]
            gone, state = each.order[: size.left[-1]].sort().values, each.state
            for leaving in rounds:
                forget = each.scene.forget_set(leaving)
                method = replace(PUBLISHED, rounds=size.rounds)
                state = method.forget(each.scene.problem, state, forget, None, GENERATOR).state
            for found, w in (
                (ours, state.weights),
                (anew, each.retrained(size.left[-1])),
                (untouched, each.scene.learned.weights),
            ):
                found.append(each.attacked(w, gone))

    spent = seconds_of(measure)
    gaps = tuple(one - other for one, other in zip(ours, anew, strict=True))
    yield Row(
        "table 1, MNIST, SAFE, MIA",
        "share of the forgotten that the attack calls trained on, less that of retraining, points",
        "0.03 (79.28 less 79.25)",
        gaps,
        f"{SETTING}; at the last round; 2,000 samples a side for 10,000; the other way of counting hits changes the "
        "sign alone; within two points",
        within(0.03, 2.0),
        f"SAFE {shown(ours)}, retrained {shown(anew)}, untouched {shown(untouched)}: the attack does not find who was "
        "trained on where the untouched model has what the retrained one has.",
        spent,
        nothing=statistics.mean(untouched) - statistics.mean(anew),
        retrained=0.0,
    )


TABLE_4 = {"retained": (-2.24, -0.09), "forgotten": (1.55, 0.36), "test": (-2.47, -0.31)}
"""accuracy less that of retraining, in points, on CoverType and on SST-2"""


def regression_rows(size: Size) -> Iterator[Row]:
    """Table 4: SAFE on a logistic regression, on MNIST's pixels in place of the table's data sets."""
    ours: list[tuple[float, ...]] = []
    anew: list[tuple[float, ...]] = []
    untouched: list[tuple[float, ...]] = []
    shorter: list[tuple[float, ...]] = []

    def measure() -> None:
        for seed in range(size.seeds):
            each = Streams.of(size, seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
            ours.append(each.last(replace(PUBLISHED, rounds=size.rounds), size.per_round))
            shorter.append(each.last(replace(PUBLISHED, rounds=size.rounds, divisor=10.0), size.per_round))
            anew.append(each.without(size.left[-1]))
            untouched.append(each.untouched(size.left[-1]))

    spent = seconds_of(measure)
    for place, name in enumerate(NAMES):
        gaps = difference(ours, anew, place)
        cover, sst = TABLE_4[name]
        yield Row(
            f"table 4, logistic regression, {name}",
            "accuracy less that of retraining, points",
            f"{sst:.2f} on SST-2, {cover:.2f} on CoverType",
            gaps,
            f"{SETTING}; MNIST's pixels for both data sets; at the last round; within half a point of SST-2, whose "
            "regression is about as accurate",
            within(sst, 0.5),
            f"SAFE {shown(column(ours, place))}, retrained {shown(column(anew, place))}, untouched "
            f"{shown(column(untouched, place))}. The length of the step decides: with K = 10 for 2.5, a quarter of it, "
            f"SAFE has {shown(column(shorter, place))}.",
            spent / 3,
            nothing=statistics.mean(difference(untouched, anew, place)),
            retrained=0.0,
        )


def time_rows(size: Size, made: list[Streams]) -> Iterator[Row]:
    """Figure 1: seconds of a round, and how many rounds fit into a retraining."""
    spent: list[float] = []
    for each in made:
        rounds = each.order.split(size.per_round)[: size.rounds]
        spent.append(seconds_of(lambda one=each, sets=rounds: one.run(PUBLISHED, sets, ())) / len(rounds))  # type: ignore[misc]
    ratios = tuple(each.scene.seconds / cost for each, cost in zip(made, spent, strict=True))
    yield Row(
        "figure 1, MNIST, SAFE",
        "CPU seconds of a round, mean of 20",
        "1.13",
        tuple(spent),
        f"{SETTING}; one CPU thread for an RTX A5000",
        at_most(1.13),
        f"A retraining takes {shown(ratios)} times as long here.",
        sum(spent) * size.rounds,
        cost="seconds",
    )


def waiting_rows() -> Iterator[Row]:
    """What was not run, and what it needs."""
    whole = (
        "the 60,000 images, which are not here, 20 epochs and 10 seeds: 20 retrainings a seed, some ten hours of CPU "
        "time, by our figures."
    )
    yield not_run("table 1, MNIST, at its size", "accuracies", "99.25, 98.89, 98.58", f"Needs {whole}")
    gpu = "Needs the images, and a GPU for its networks."
    yield not_run("tables 1, 2, 6 and 10, Fashion-MNIST", "accuracies", "92.03, 90.88, 89.22", "Needs the images.")
    yield not_run("tables 1, 2, 7 and 10, CIFAR-10", "accuracies of a ResNet-18", "94.54, 92.49, 88.31", gpu)
    yield not_run("tables 1, 2, 8 and 10, Tiny ImageNet", "accuracies of a ResNet-18", "49.64, 47.70, 42.24", gpu)
    yield not_run(
        "table 4, CoverType and SST-2, their own samples",
        "accuracies of a logistic regression",
        "57.30, 41.68, 56.91; 87.33, 86.59, 85.87",
        "Needs both data sets, and DistilBERT for SST-2.",
    )


def mean_of(rounds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(statistics.mean(values) for values in zip(*rounds, strict=True))


def column(found: Sequence[tuple[float, ...]], place: int) -> tuple[float, ...]:
    return tuple(each[place] for each in found)


def difference(one: Sequence[tuple[float, ...]], other: Sequence[tuple[float, ...]], place: int) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(column(one, place), column(other, place), strict=True))


def shown(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def norm(made: Sequence[Streams]) -> float:
    return statistics.mean(float(each.scene.learned.weights.norm()) for each in made)


def gamma(made: Sequence[Streams], rounds: int) -> float:
    return norm(made) ** 0.5 / (DIVISOR * rounds**0.5)
