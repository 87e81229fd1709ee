"""Fixed features equal their slow twins, hold no numbers, and are the same everywhere."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor, nn

from unlearning.features import RandomFourier, RandomKernels, Scattering
from unlearning.features.kernels import draws

EVERY = [
    pytest.param(lambda: Scattering(8, 8, scales=1, orientations=2), (8, 8), id="scattering"),
    pytest.param(lambda: Scattering(8, 12, scales=2, orientations=3), (2, 8, 12), id="scattering, two channels"),
    pytest.param(lambda: RandomFourier(5, 40, length=2.0, seed=3), (5,), id="fourier"),
    pytest.param(lambda: RandomKernels(30, kernels=20, channels=2, seed=1), (2, 30), id="kernels"),
]


def gabor(y: float, x: float, sigma: float, angle: float, xi: float, slant: float) -> complex:
    u, v = math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x
    size = slant / (2 * math.pi * sigma**2) * math.exp(-(u * u + (slant * v) ** 2) / (2 * sigma**2))
    return size * cmath.exp(1j * xi * u)


def periodic(side: int, sigma: float, angle: float, xi: float, slant: float) -> list[list[complex]]:
    around = range(-2, 3)
    return [
        [
            sum(gabor(y + a * side, x + b * side, sigma, angle, xi, slant) for a in around for b in around)
            for x in range(side)
        ]
        for y in range(side)
    ]


def convolved(image: list[list[complex]], kernel: list[list[complex]]) -> list[list[complex]]:
    side = len(image)
    every = range(side)
    return [
        [sum(image[a][b] * kernel[(y - a) % side][(x - b) % side] for a in every for b in every) for x in every]
        for y in every
    ]


def slow_scattering(image: Tensor, orientations: int) -> list[float]:
    """One scale (J = 1) of a square image, by the definition: sums over pixels, no Fourier transform."""
    side, margin = len(image), 2
    mirror = [abs(i) if i < side else 2 * (side - 1) - i for i in range(-margin, side + margin)]
    padded = [[complex(float(image[y, x])) for x in mirror] for y in mirror]
    low = periodic(len(padded), 0.8, 0.0, 0.0, 1.0)
    layers = [padded]
    for turn in range(orientations):
        angle, slant = math.pi * turn / orientations, 4.0 / orientations
        wave = periodic(len(padded), 0.8, angle, 0.75 * math.pi, slant)
        envelope = periodic(len(padded), 0.8, angle, 0.0, slant)
        share = sum(map(sum, wave)) / sum(map(sum, envelope))
        kernel = [[w - share * e for w, e in zip(ws, es, strict=True)] for ws, es in zip(wave, envelope, strict=True)]
        layers.append([[complex(abs(value)) for value in row] for row in convolved(padded, kernel)])
    out: list[float] = []
    for layer in layers:
        smooth = convolved(layer, low)
        kept = [smooth[y][x].real for y in range(margin, margin + side, 2) for x in range(margin, margin + side, 2)]
        mean = sum(kept) / len(kept)
        norm = math.sqrt(sum((value - mean) ** 2 for value in kept))
        out += [(value - mean) / norm / math.sqrt(len(layers)) for value in kept]
    return out


def test_scattering_equals_the_sums_of_its_definition() -> None:
    image = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fast = Scattering(6, 6, scales=1, orientations=2)(image.unsqueeze(0))[0]
    assert torch.allclose(fast, torch.tensor(slow_scattering(image, 2), dtype=torch.float64), atol=1e-12)


def test_the_sizes_are_those_of_the_paper() -> None:
    assert Scattering(28, 28).channels == 81
    assert Scattering(28, 28).size == 3969
    assert Scattering(28, 28)(torch.rand(3, 28, 28)).shape == (3, 3969)


def test_a_shifted_stroke_changes_its_scattering_less_than_its_pixels() -> None:
    image = torch.zeros(1, 28, 28, dtype=torch.float64)
    image[0, 8:20, 13:15] = 1.0
    shifted = image.roll(1, dims=2)
    moved = [
        float((make(shifted) - make(image)).norm() / make(image).norm()) for make in (Scattering(28, 28), nn.Flatten())
    ]
    assert moved[0] < 0.6 * moved[1]


def test_random_fourier_features_approximate_the_gaussian_kernel() -> None:
    rows = torch.randn(20, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    phi = RandomFourier(4, 40_000, length=1.5)(rows)
    kernel = torch.exp(-(torch.cdist(rows, rows) ** 2) / (2 * 1.5**2))
    assert float((phi @ phi.T - kernel).abs().max()) < 0.03


def test_random_kernels_equal_a_loop_over_every_window() -> None:
    series = torch.randn(2, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = RandomKernels(20, kernels=6, seed=4)(series)
    for row, one in enumerate(series):
        plain = (one - one.mean()) / one.std(correction=0)
        for k, (weights, bias, dilation) in enumerate(draws(20, 6, 1, 4)):
            size = weights.shape[1]
            half = dilation * (size - 1) // 2
            values = [
                float(bias)
                + sum(float(weights[0, j] * plain[i]) for j in range(size) if 0 <= (i := t - half + j * dilation) < 20)
                for t in range(20 + 2 * half - dilation * (size - 1))
            ]
            assert float(found[row, 2 * k]) * math.sqrt(12) == pytest.approx(max(values), abs=1e-12)
            assert float(found[row, 2 * k + 1]) * math.sqrt(12) == pytest.approx(
                sum(v > 0 for v in values) / len(values)
            )


@pytest.mark.parametrize(("make", "shape"), EVERY)
def test_features_of_a_sample_do_not_depend_on_the_others_and_blank_ones_are_finite(
    make: type, shape: tuple[int, ...]
) -> None:
    inputs = torch.rand(5, *shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    inputs[2] = 0.25
    together = make()(inputs)
    assert torch.isfinite(together).all()
    for row, one in zip(together, inputs, strict=True):
        assert torch.allclose(make()(one.unsqueeze(0))[0], row, atol=1e-12)
    assert make()(inputs.float()).dtype == torch.float32
    assert torch.allclose(make()(inputs.float()).double()[0], together[0], atol=1e-4)


def test_a_blank_image_scatters_to_zeros() -> None:
    assert not Scattering(28, 28)(torch.full((1, 28, 28), 0.5)).any()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Scattering(30, 28), "Pad the images"),
        (lambda: RandomFourier(0, 5), "inputs=0"),
        (lambda: RandomKernels(10), "at least 11"),
    ],
)
def test_a_wrong_size_is_refused_in_words(make: type, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
