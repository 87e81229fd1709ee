"""Small held-out trials: what ``proved`` says of an update lies above its distance to a float64 retraining.

A trial draws data, a model (fixed features of images with a softmax head, or the tangent of a network), settings and
who is forgotten; refines the old weights as the service does; and retrains without the project's formulas
(``tests/contract/retraining.py``: plain modules, plain autograd, a dense Hessian).

``pytest -m drill tests/unlearning/bounds/test_bounds_hold.py`` makes 1,000 trials of scattering, 1,000 of tangents,
and 10 of full size. ``python -m benchmarks bounds_hold`` makes the small ones and keeps the ratios.
"""

from __future__ import annotations

import gzip
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
from expunge_workers.guarantee.noise import perturbed
from tests.contract import retraining
from unlearning.bounds.minimiser import Minimiser
from unlearning.features import RandomFourier, RandomKernels, Scattering, Tangent
from unlearning.methods.newton import Newton
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by
from unlearning.quality.unaffected import Answering
from unlearning.types import Examples, Forgotten, State

torch.set_num_threads(1)
PEOPLE, CLASSES = 8, 3
MNIST = Path(os.environ.get("EXPUNGE_MNIST", Path(__file__).parents[4] / "shared" / "data" / "mnist10k"))


KINDS = {"scattering": (24, 4, 4), "Fourier": (24, 5), "kernels": (24, 11), "tangent": (16, 6)}
"""what is proved, and the shape of all inputs; a sample of a tangent costs the most"""


def drawn(kind: str, seed: int) -> tuple[ul.Recipe, float, torch.Generator]:
    """A recipe with its greatest distance, and the generator that drew it."""
    by, (count, *shape) = torch.Generator().manual_seed(seed), KINDS[kind]
    decay = 10.0 ** -(1 + 3 * float(torch.rand(1, generator=by)))
    x = torch.rand(count, *shape, generator=by, dtype=torch.float64)
    y = torch.randint(CLASSES, (count,), generator=by)
    y[:CLASSES] = torch.arange(CLASSES)
    x += 0.5 * y.reshape(-1, *(1 for _ in shape)) * torch.rand(shape, generator=by, dtype=torch.float64)

    def model() -> nn.Module:
        head = partial(nn.Linear, out_features=CLASSES, bias=seed % 3 == 0)
        match kind:
            case "scattering":
                return nn.Sequential(Scattering(4, 4, 1, 2), head(12))
            case "Fourier":
                return nn.Sequential(RandomFourier(5, 10), head(10))
            case "kernels":
                return nn.Sequential(RandomKernels(11, 5), head(10))
        network = nn.Sequential(nn.Linear(6, 3), nn.GELU() if seed % 2 else nn.ReLU(), nn.Linear(3, CLASSES))
        return Tangent(network, network.state_dict())

    recipe = ul.Recipe(
        model=model,
        samples=ul.Samples(
            [f"s{k}" for k in range(count)],
            [f"p{int(k)}" for k in torch.randint(PEOPLE, (count,), generator=by)],
            x,
            y,
        ),
        holdout=(x, y),
        loss=("cross_entropy", "squared_hinge")[seed // 10 % 2],
        training=ul.Training(epochs=0, weight_decay=decay, converge=decay * 1e-7, seed=seed),
    )
    return recipe, 10.0 ** -(1 + 5 * float(torch.rand(1, generator=by))), by


def trial(kind: str, seed: int) -> tuple[float, float]:
    """The bound and the true distance of one update. Answers called independent must be those of the retraining."""
    recipe, cap, by = drawn(kind, seed)
    problem, examples = Problem(recipe), recipe.samples.examples()
    state = State(train(problem, examples).weights)
    names = sorted(examples.people.distinct())
    gone = [names[k] for k in torch.randperm(len(names), generator=by)[: 1 + seed % 3].tolist()]
    forget = forget_set(examples, gone)
    kept, bound = left_by(examples, forget), Minimiser()
    weights, claimed = bound.refine(problem, Forgotten(state), kept, cap, {})
    assert claimed <= cap
    retrained, doubt = retraining.of(recipe, kept)
    _require_answers(recipe, problem, weights, retrained, cap)
    return claimed, float((weights - retrained).norm()) - doubt


def _require_answers(recipe: ul.Recipe, problem: Problem, weights: Tensor, retrained: Tensor, cap: float) -> None:
    noise = perturbed(torch.zeros_like(weights), 0.1)
    versions = []
    for w in (weights, retrained):
        module = recipe.model().float()
        module.load_state_dict(problem.tensors((w + noise).float()))
        versions.append(module)
    inputs = recipe.holdout[0][:12]
    found = Answering(versions[0], cap)(inputs)
    with torch.no_grad():
        labels = versions[1].double()(inputs).argmax(dim=1)
    assert torch.equal(found.labels[found.independent], labels[found.independent])


def require_held(kind: str, seeds: range) -> None:
    shares = []
    for seed in seeds:
        claimed, true = trial(kind, seed)
        assert true <= claimed, f"{kind}, seed {seed}: the bound is {claimed:.3g} and the distance {true:.3g}"
        shares.append(true / claimed)
    assert max(shares) > 0.02, "every bound is far above its distance: the trials could not have failed"


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_in_five_trials(kind: str) -> None:
    require_held(kind, range(5))


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("kind", ["scattering", "tangent"])
def test_the_bound_holds_in_a_thousand_trials(kind: str, block: int) -> None:
    require_held(kind, range(1_000 + 100 * block, 1_100 + 100 * block))


def scattered() -> tuple[Tensor, Tensor]:
    def read(name: str, header: int) -> Tensor:
        with gzip.open(MNIST / name) as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

    images = read("images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)[:2_000].double() / 255
    return Scattering(28, 28)(images), read("labels-idx1-ubyte.gz", 8)[:2_000].long()


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST's test split is not there; EXPUNGE_MNIST names its folder")
def test_the_bound_holds_in_ten_trials_with_39690_weights() -> None:
    """Scattering of 2,000 images, decay 1e-5; the reference is a Newton's method that knows autograd alone."""
    phi, y = scattered()
    recipe = ul.Recipe(
        model=lambda: nn.Linear(phi.shape[1], 10, bias=False),
        samples=ul.Samples([f"s{k}" for k in range(len(y))], [f"p{k % 100}" for k in range(len(y))], phi, y),
        holdout=(phi[:10], y[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=1e-5, converge=1e-10),
    )
    problem, examples = Problem(recipe, dtype=torch.float64), recipe.samples.examples()
    start, bound = State(train(problem, examples).weights), Minimiser()
    for place in range(10):
        forget = forget_set(examples, [f"p{place}", f"p{50 + place}"])
        kept = left_by(examples, forget)
        done = Newton().forget(problem, start, forget, kept, torch.Generator())
        weights, claimed = bound.refine(problem, done, kept, 1e-5, {})
        reference, doubt = by_autograd(kept, 1e-5)
        assert doubt < 1e-6
        assert float((weights - reference).norm()) - doubt <= claimed <= 1e-5


def by_autograd(kept: Examples, decay: float) -> tuple[Tensor, float]:
    """The minimiser by Newton's method, with autograd's gradients and products; and how far it can be off."""
    w = torch.zeros(10 * kept.inputs.shape[1], dtype=torch.float64, requires_grad=True)
    norm = float("inf")
    for _ in range(40):
        loss = (
            nn.functional.cross_entropy(kept.inputs @ w.reshape(10, -1).T, kept.targets) + decay / 2 * w.square().sum()
        )
        (gradient,) = torch.autograd.grad(loss, w, create_graph=True)
        norm = float(gradient.norm())
        if norm <= 1e-7 * decay:
            break
        step, residual = torch.zeros_like(w), gradient.detach()
        direction, left = residual, residual @ residual
        goal = left * min(0.1, norm**0.5) ** 2
        while left > goal:
            (image,) = torch.autograd.grad(gradient, w, direction, retain_graph=True)
            length = left / (direction @ image)
            step, residual = step + length * direction, residual - length * image
            before, left = left, residual @ residual
            direction = residual + left / before * direction
        w = (w - step).detach().requires_grad_()
    return w.detach(), norm / decay
