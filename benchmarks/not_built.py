"""What networks could do and this service does not offer: each against what it would replace, on MNIST.

``python -m benchmarks.not_built [noise] [private] [replay] [public]`` prints the rows, all without a word. The folder
``EXPUNGE_MNIST`` holds MNIST's test split in IDX format; its last 2,000 images are the holdout. A convolutional network
of 20,522 weights is trained by plain gradient steps, three seeds each. Written in plain torch: nothing here is the
project's own code but the conversion between epsilon and mu.

* ``noise``: weights in a ball, noise, then steps on the retained data (Koloskova et al. 2025, model clipping), against
  as many steps from a new start.
* ``private``: training with noise by person (Abadi et al. 2016), 8,000 people of one image.
* ``replay``: what is left of the distance to retraining after rewinding, recollection, both, control variates and
  stored gradients, when 4 of 400 people leave.
* ``public``: a network that learns a trained network's answers on 500 public images.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from benchmarks.proved_features_mnist import Data, Row, mnist, row
from unlearning.accounting.budget import epsilon_at, mu_at

TRAIN, PEOPLE, FORGOTTEN, PUBLIC = 8_000, 400, 4, 500
BATCH, EPOCHS, RATE, DECAY = 64, 10, 0.1, 1e-4
EPSILON, DELTA = 1.0, 1e-5
SEEDS = (0, 1, 2)
MODULE = nn.Sequential(
    nn.Unflatten(1, (1, 28)),
    nn.Conv2d(1, 8, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
SHAPES = {name: value.shape for name, value in MODULE.named_parameters()}
SIZE = sum(shape.numel() for shape in SHAPES.values())


def rows(parts: Sequence[str] = ()) -> Iterator[Row]:
    """Yield every measurement of the parts named."""
    torch.set_num_threads(1)
    images, labels = mnist()
    data = images.float().reshape(-1, 28, 28), labels
    for name, measured in {"noise": of_noise, "private": of_private, "replay": of_replay, "public": of_public}.items():
        if not parts or name in parts:
            yield from measured(data)


def start(seed: int) -> Tensor:
    """Return a flat random start, as torch draws it."""
    torch.manual_seed(seed)
    for part in MODULE:
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.reset_parameters()
    return torch.cat([value.detach().flatten() for value in MODULE.parameters()])


def outputs(w: Tensor, x: Tensor) -> Tensor:
    parts = torch.split(w, [shape.numel() for shape in SHAPES.values()])
    tensors = {name: part.view(shape) for part, (name, shape) in zip(parts, SHAPES.items(), strict=True)}
    found: Tensor = functional_call(MODULE, tensors, (x,))
    return found


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs(w, x), y) + 0.5 * DECAY * w.square().sum()


def gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = grad(loss)(w, x, y)
    return found


def accuracy(w: Tensor, data: Data) -> float:
    with torch.no_grad():
        return 100.0 * float((outputs(w, data[0][TRAIN:]).argmax(dim=1) == data[1][TRAIN:]).float().mean())


def batches(seed: int, rows: int, epochs: float) -> list[Tensor]:
    """Return the rows of each step; the first steps of a longer training are those of a shorter one."""
    generator = torch.Generator().manual_seed(seed)
    steps = round(epochs * rows / BATCH)
    drawn = (torch.split(torch.randperm(rows, generator=generator), BATCH) for _ in range(math.ceil(epochs)))
    return [batch for epoch in drawn for batch in epoch][:steps]


def descended(w: Tensor, data: Data, steps: Sequence[Tensor]) -> Tensor:
    for batch in steps:
        w = w - RATE * gradient(w, data[0][batch], data[1][batch])
    return w


def of_noise(data: Data) -> Iterator[Row]:
    """At the best of three radii: the radius sets the noise, and with it the size of the start's weights.

    The third side starts from the noise alone, without the trained weights: what they add to it is the difference.
    """
    mu = mu_at(EPSILON, DELTA)
    yield row(f"noise: signal over noise, d = {SIZE}", mu / (2 * math.sqrt(SIZE)), "reported", "ratio", None, mu=mu)
    anew = list[float]()
    noisy, alone = ({radius: list[float]() for radius in (0.005, 0.01, 0.015)} for _ in range(2))
    for seed in SEEDS:
        w = descended(start(seed), data, batches(seed, TRAIN, EPOCHS))
        tenth = batches(seed + 100, TRAIN, EPOCHS / 10)
        anew.append(accuracy(descended(start(seed + 100), data, tenth), data))
        generator = torch.Generator().manual_seed(seed)
        for radius in noisy:
            noise = torch.randn(SIZE, generator=generator) * 2 * radius / mu
            noisy[radius].append(accuracy(descended(w * (radius / w.norm()) + noise, data, tenth), data))
            alone[radius].append(accuracy(descended(noise, data, tenth), data))
    best = max(noisy, key=lambda radius: fmean(noisy[radius]))
    name = (
        f"noise: accuracy after a tenth of a training, epsilon {EPSILON:g}; beside it, from noise alone and a new start"
    )
    yield row(name, fmean(noisy[best]), "reported", "%", None, radius=best, noisy=noisy, alone=alone, anew=anew)


def of_private(data: Data, sigma: float = 0.8, epochs: int = 20, expected: int = 256) -> Iterator[Row]:
    """By person, with Poisson sampling and clip 1; and what five people are who leave together."""
    rate, steps = expected / TRAIN, epochs * TRAIN // expected
    epsilon = epsilon_of_private(sigma, rate, steps)
    private, plain = [], []
    alone = vmap(grad(lambda w, x, y: F.cross_entropy(outputs(w, x[None]), y[None])), in_dims=(None, 0, 0))
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        w = start(seed)
        for _ in range(steps):
            batch = (torch.rand(TRAIN, generator=generator) < rate).nonzero().flatten()
            each = alone(w, data[0][batch], data[1][batch])
            clipped = each / each.norm(dim=1, keepdim=True).clamp_min(1.0)
            noise = sigma * torch.randn(SIZE, generator=generator)
            w = w - 0.5 * (clipped.sum(dim=0) + noise) / expected
        private.append(accuracy(w, data))
        plain.append(accuracy(descended(start(seed), data, batches(seed, TRAIN, EPOCHS)), data))
    name = f"private: accuracy at epsilon {epsilon:.1f}, delta {DELTA:g}; beside it, without noise"
    yield row(name, fmean(private), "reported", "%", None, private=private, plain=plain, sigma=sigma)
    mu = mu_at(epsilon, DELTA)
    yield row("private: epsilon of five people", epsilon_at(5 * mu, DELTA), "reported", "epsilon", None, mu=mu)


def epsilon_of_private(sigma: float, rate: float, steps: int) -> float:
    """Return epsilon at DELTA of Poisson-sampled Gaussian steps, by Renyi orders (Mironov et al. 2019, section 3.3)."""

    def of_order(order: int) -> float:
        terms = torch.tensor(
            [
                math.lgamma(order + 1)
                - math.lgamma(k + 1)
                - math.lgamma(order - k + 1)
                + (order - k) * math.log1p(-rate)
                + k * math.log(rate)
                + k * (k - 1) / (2 * sigma**2)
                for k in range(order + 1)
            ],
            dtype=torch.float64,
        )
        renyi = steps * float(terms.logsumexp(dim=0)) / (order - 1)
        return renyi + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)

    return min(of_order(order) for order in range(2, 128))


def of_replay(data: Data) -> Iterator[Row]:
    """Each way's distance to a retraining, over the distance of doing nothing; the last tenth is rewound."""
    found = [replayed(data, seed) for seed in SEEDS]
    for name in found[0]:
        values = [each[name] for each in found]
        yield row(f"replay: distance left by {name}", fmean(values), "reported", "of doing nothing", None, seeds=values)


def replayed(data: Data, seed: int) -> dict[str, float]:
    people = torch.arange(TRAIN) // (TRAIN // PEOPLE)
    generator = torch.Generator().manual_seed(seed)
    gone = torch.isin(people, torch.randperm(PEOPLE, generator=generator)[:FORGOTTEN])
    steps = batches(seed, TRAIN, EPOCHS)
    back = len(steps) - len(steps) // 10
    w = cold = stored = varied = start(seed)
    v = torch.zeros(SIZE)
    rewound = both = w
    for number, batch in enumerate(steps):
        if number == back:
            rewound, both = w, w + v
        x, y = data[0][batch], data[1][batch]
        kept = ~gone[batch]
        xk, yk = x[kept], y[kept]
        here = gradient(w, x, y)
        here_kept, curved = jvp(lambda at, x=xk, y=yk: gradient(at, x, y), (w,), (v,))[:2]
        few = torch.randperm(len(xk), generator=generator)[: BATCH // 8]
        change = gradient(varied, xk[few], yk[few]) - gradient(w, xk[few], yk[few])
        varied = varied - RATE * (here_kept + change)
        stored = stored - RATE * here_kept
        v = v - RATE * (curved + here_kept - here)
        cold = cold - RATE * gradient(cold, xk, yk)
        w = w - RATE * here
    ended = steps[back:]
    retained = [batch[~gone[batch]] for batch in ended]
    nothing = float((w - cold).norm())
    ways = {
        "rewinding": descended(rewound, data, retained),
        "recollection": w + v,
        "rewinding and recollection": descended(both, data, retained),
        "control variates": varied,
        "stored gradients": stored,
    }
    return {name: float((way - cold).norm()) / nothing for name, way in ways.items()}


def of_public(data: Data) -> Iterator[Row]:
    taught, labelled, teacher = [], [], []
    for seed in SEEDS:
        w = descended(start(seed), data, batches(seed, TRAIN, EPOCHS))
        answers = outputs(w, data[0][:PUBLIC]).softmax(dim=1).detach()
        steps = batches(seed + 100, PUBLIC, EPOCHS * TRAIN / PUBLIC)
        taught.append(accuracy(descended(start(seed + 100), (data[0], answers), steps), data))
        labelled.append(accuracy(descended(start(seed + 100), data, steps), data))
        teacher.append(accuracy(w, data))
    name = f"public: accuracy of a network that learns another's answers on {PUBLIC} public images"
    yield row(name, fmean(taught), "reported", "%", None, taught=taught, labelled=labelled, teacher=teacher)


if __name__ == "__main__":
    for each in rows(sys.argv[1:]):
        print(each, flush=True)
