"""A model trained on images, who leaves it, and what is measured of the weights that come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.papers.images import Images
from unlearning import Problem, Recipe, Samples, Training
from unlearning.model.training import train
from unlearning.types import Examples, ForgetSet, Learned


@dataclass(frozen=True)
class Scene:
    """A trained model. ``people`` owns the samples; ``seconds`` of CPU time is what the training took."""

    problem: Problem
    examples: Examples
    learned: Learned
    seconds: float

    @classmethod
    def of(
        cls,
        model: Callable[[], nn.Module],
        images: Images,
        people: Sequence[str],
        training: Training,
    ) -> Scene:
        names = [str(index) for index in range(len(images.inputs))]
        samples = Samples(names, list(people), images.inputs, images.targets)
        holdout = (images.test_inputs, images.test_targets)
        problem = Problem(Recipe(model, samples, holdout, "cross_entropy", training))
        examples = samples.examples()
        start = time.process_time()
        return cls(problem, examples, train(problem, examples), time.process_time() - start)

    def retrained(self, gone: Tensor) -> Tensor:
        """Return the weights (d,) of the same training without the positions ``gone``."""
        return train(self.problem, self.examples, omit=gone.tolist()).weights

    def forget_set(self, gone: Tensor) -> ForgetSet:
        """Return the forget set of the positions ``gone``, with their samples."""
        given = self.examples.only(gone.sort().values)
        return ForgetSet(frozenset(given.people), tuple(given.positions.tolist()), given)

    def accuracies(self, w: Tensor, gone: Tensor) -> tuple[float, float, float]:
        """Return the accuracy in % on those who stay, on ``gone``, and on the test images."""
        stay, left = self.examples.without(gone), self.examples.only(gone.sort().values)
        parts = ((stay.inputs, stay.targets), (left.inputs, left.targets), self.problem.recipe.holdout)
        retained, forgotten, tested = (100 * self.problem.accuracy(w, *part) for part in parts)
        return retained, forgotten, tested


def seconds_of(work: Callable[[], object]) -> float:
    """Return the CPU seconds of ``work``."""
    start = time.process_time()
    work()
    return time.process_time() - start


def drawn(count: int, of: int, seed: int) -> Tensor:
    """Draw ``count`` of the numbers below ``of``, in random order."""
    return torch.randperm(of, generator=torch.Generator().manual_seed(seed))[:count]
