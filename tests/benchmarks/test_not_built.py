"""The arithmetic behind the decisions on what is not built, on small random images; no MNIST."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks import not_built
from benchmarks.not_built import epsilon_of_private, of_noise, replayed


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    for name, value in {"TRAIN": 128, "PEOPLE": 32, "EPOCHS": 4, "SEEDS": (0,)}.items():
        monkeypatch.setattr(not_built, name, value)
    images = torch.randn(160, 28, 28, generator=torch.Generator().manual_seed(0))
    return images, torch.arange(160) % 10


def test_a_start_from_noise_keeps_a_thousandth_of_the_trained_weights(data: tuple[Tensor, Tensor]) -> None:
    ratio, accuracy = of_noise(data)
    assert ratio["value"] == pytest.approx(0.268 / (2 * 20_522**0.5), rel=0.01)
    assert set(accuracy["sides"]) == {"radius", "noisy", "alone", "anew"}


@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 1), (5.0, 20)])
def test_without_sampling_the_private_steps_cost_what_gaussian_steps_cost(sigma: float, steps: int) -> None:
    """Renyi order a of a Gaussian mechanism is a / (2 sigma^2); the conversion is that of the same paper."""
    alone = min(
        steps * order / (2 * sigma**2)
        + torch.tensor(1 - 1 / order).log().item()
        - (torch.tensor(1e-5).log().item() + torch.tensor(float(order)).log().item()) / (order - 1)
        for order in range(2, 128)
    )
    assert epsilon_of_private(sigma, 1.0 - 1e-12, steps) == pytest.approx(alone, rel=1e-4)
    assert epsilon_of_private(sigma, 0.1, steps) < alone


def test_with_tiny_steps_every_replay_comes_near_and_rewinding_serves_its_share(
    data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a tiny step size the weights hardly move, so that a gradient that was stored is nearly the gradient still."""
    monkeypatch.setattr(not_built, "RATE", 1e-3)
    monkeypatch.setattr(not_built, "EPOCHS", 10)
    found = replayed(data, 0)
    assert found.pop("rewinding") == pytest.approx(0.9, abs=0.1)
    assert set(found) == {"recollection", "rewinding and recollection", "control variates", "stored gradients"}
    assert max(found.values()) < 0.3
