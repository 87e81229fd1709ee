"""The noise is Gaussian, of the stated size, and never the same twice."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from expunge_workers.guarantee.noise import BLOCK, perturbed


def gaussian(count: int) -> Tensor:
    """Standard normal numbers, as published weights get them."""
    return perturbed(torch.zeros(count, dtype=torch.float64), 1.0)


def test_it_is_standard_normal_over_several_blocks() -> None:
    sample = gaussian(BLOCK + 100_001).numpy()
    assert sample.dtype == np.float64 and len(sample) == BLOCK + 100_001
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(sample[: len(sample) // 2], sample[-(len(sample) // 2) :])[0, 1]) < 0.01
    assert 4 < np.abs(sample).max() < 8.58


def test_tails_have_their_weight() -> None:
    sample = np.abs(gaussian(2_000_000).numpy())
    for bound in (2.0, 3.0, 4.0):
        expected = 2 * stats.norm.sf(bound) * len(sample)
        assert abs((sample > bound).sum() - expected) < 6 * expected**0.5


def test_no_two_draws_agree() -> None:
    first, second = gaussian(1000), gaussian(1000)
    assert not bool((first == second).any())


def test_no_generator_of_the_process_moves_or_matters() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.random.get_rng_state()
    first = gaussian(10)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(0)
    np.random.seed(0)
    assert not torch.equal(first, gaussian(10))


def test_it_is_added_in_float64_at_the_stated_size() -> None:
    weights = torch.full((200_000,), 3.0)
    y = perturbed(weights, 0.01)
    assert y.dtype == torch.float64
    assert abs(float((y - 3.0).std()) - 0.01) < 2e-4
    assert abs(float((y - 3.0).mean())) < 2e-4
    assert torch.equal(perturbed(weights, 0.0), weights.double())


def test_small_and_odd_counts() -> None:
    assert [len(gaussian(count)) for count in (0, 1, 2, 3)] == [0, 1, 2, 3]


def test_rounding_comes_after_adding_over_several_blocks() -> None:
    weights = torch.linspace(-1, 1, 2 * BLOCK + 7)
    assert torch.equal(perturbed(weights, 0.0, torch.float32), weights)
    y = perturbed(weights, 0.5, torch.float32)
    assert y.dtype == torch.float32
    assert abs(float((y - weights).std()) - 0.5) < 0.01
