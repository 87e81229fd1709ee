"""A trained model whose images belong to groups that are forgotten together: the ground of several papers' rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn

from benchmarks.papers.images import Images
from unlearning import Problem, Recipe, Samples, Training
from unlearning.methods.recollection import Recollection
from unlearning.model.training import retrace, train
from unlearning.quality.simulate import forget_set
from unlearning.types import Examples, ForgetSet, Learned, State, Vectors

DRAWN = "drawn, no number: {}"
TEST_SPLIT = "the images are the first 1,000 of MNIST's test split"
VECTORS = f'{TEST_SPLIT}; `carried_by="everyone"`'
"""what differs where a row uses the published vectors in place of the default ones"""
SOFTMAX = Training(epochs=50, learning_rate=0.05, decay=0.995, clip=10.0, weight_decay=1e-6)
NETWORK = replace(SOFTMAX, epochs=20, batch_size=64)
METHOD = Recollection(carried_by="everyone")


@dataclass(frozen=True)
class Size:
    """How much is measured.

    ``rates``, ``passes``, ``decays`` and ``counts`` are the ablations' step sizes, epochs, q and n; ``rounds`` the
    deletions of figure 8, each of ``round_share`` of all images.
    """

    images: Callable[[], Images]
    count: int
    seeds: tuple[int, ...]
    epochs: tuple[int, ...]
    network: Training
    rates: tuple[float, ...]
    passes: tuple[int, ...]
    decays: tuple[float, ...]
    counts: tuple[int, ...]
    rounds: int
    products: int
    single: int


@dataclass(frozen=True)
class Scene:
    """A trained model whose images belong to groups: ``groups[j]`` are the people of the first j + 1 shares."""

    problem: Problem
    examples: Examples
    learned: Learned

    @classmethod
    def of(cls, model: Callable[[], nn.Module], images: Images, training: Training, groups: Sequence[str]) -> Scene:
        recipe = Recipe(
            model=model,
            samples=Samples([f"image-{place}" for place in range(len(groups))], groups, images.inputs, images.targets),
            holdout=(images.test_inputs, images.test_targets),
            loss="cross_entropy",
            training=training,
        )
        problem, examples = Problem(recipe), recipe.samples.examples()
        return cls(problem, examples, train(problem, examples))

    def gone(self, share: int) -> ForgetSet:
        """Return the forget set of the first ``share`` + 1 groups."""
        return forget_set(self.examples, [f"group-{place}" for place in range(share + 1)])

    def retrained(self, gone: ForgetSet) -> Tensor:
        assert self.learned.trajectory is not None
        return retrace(self.problem, self.examples, self.learned.trajectory, gone.positions)

    def state(self, shares: int) -> State:
        """Return the state with the vectors of the first ``shares`` groups."""
        people = [f"group-{place}" for place in range(shares)]
        return METHOD.state_for(self.problem, self.examples, self.learned, people)

    def recollected(self, state: State, gone: ForgetSet) -> Tensor:
        asked = replace(gone, vectors=Vectors(state.vectors))
        return METHOD.forget(self.problem, state, asked, None, torch.Generator()).state.weights

    def closeness(self, weights: Tensor, retrained: Tensor, gone: ForgetSet) -> dict[str, float]:
        """Return the distance to the retraining, and how well the loss of each forgotten image was foretold."""
        assert gone.examples is not None
        x, y = gone.examples.inputs, gone.examples.targets
        with torch.no_grad():
            losses = [self.problem.sample_losses(w, x, y) for w in (self.learned.weights, weights, retrained)]
        foretold, true = (losses[1] - losses[0]).numpy(), (losses[2] - losses[0]).numpy()
        found = {"distance": float((weights - retrained).norm())}
        if weights is not self.learned.weights:
            found |= {"pearson": float(pearsonr(foretold, true)[0]), "spearman": float(spearmanr(foretold, true)[0])}
        return found


def drawn(count: int, shares: Sequence[float], seed: int) -> list[str]:
    """Return a group for each of ``count`` images: ``group-j`` takes those of share j that share j - 1 leaves."""
    ends = torch.tensor([round(share * count) for share in shares])
    ranks = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    places = torch.searchsorted(ends, ranks, right=True).tolist()
    return [f"group-{place}" if place < len(shares) else "stays" for place in places]


def linear() -> nn.Module:
    """Return softmax regression: 7,850 weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def convolutional() -> nn.Module:
    """Return the paper's network of 21,840 weights; its dropout is left out, as dropout cannot be followed."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )
