"""Random numbers by key: the published generator, fair, and the same without anyone else."""

from __future__ import annotations

import math

import pytest
import torch

from unlearning.model.descent.draws import GAMMA, below, chosen, keys_of, uniform, words

PEOPLE = tuple(f"person-{index % 40}" for index in range(200))
PUBLISHED = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)
"""SplitMix64 from seed 1234567, as its authors' C code prints it"""


def plain(state: int, count: int) -> list[int]:
    """Compute SplitMix64 in Python's whole numbers."""
    found = []
    for _ in range(count):
        state = (state + (GAMMA % 2**64)) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        found.append(z ^ (z >> 31))
    return found


def test_the_words_are_those_of_the_published_generator() -> None:
    assert tuple(word % 2**64 for word in words(torch.tensor([1234567]), 5)[0].tolist()) == PUBLISHED
    for seed in (0, 3, 2**63 - 1, -5):
        assert [word % 2**64 for word in words(torch.tensor([seed]), 70)[0].tolist()] == plain(seed % 2**64, 70)
    assert below(torch.tensor([7]), 4).item() == words(torch.tensor([7]), 5)[0, 4].item()


def test_keys_do_not_change_when_others_leave() -> None:
    keys = keys_of(("0", "all"), PEOPLE)
    assert len(set(keys.tolist())) == len(keys)
    kept = [place for place, person in enumerate(PEOPLE) if person not in ("person-3", "person-39")]
    assert torch.equal(keys_of(("0", "all"), [PEOPLE[place] for place in kept]), keys[kept])
    for other in (("1", "all"), ("0", "phase 1")):
        assert not set(keys_of(other, PEOPLE).tolist()) & set(keys.tolist())


@pytest.mark.parametrize("count", [1, 3, 64, 70_001])
def test_a_row_does_not_depend_on_the_other_rows(count: int) -> None:
    keys = keys_of(("0",), PEOPLE[:9])
    for draw in (words, uniform, lambda keys, count: chosen(keys, count, 0.3)):
        together = draw(keys, count)
        assert together.shape == (9, count)
        assert torch.equal(draw(keys[[4, 1]], count), together[[4, 1]])


def test_numbers_are_uniform_and_not_correlated() -> None:
    keys = keys_of(("5",), PEOPLE)
    u = uniform(keys, 2000, torch.float64)
    assert float(u.min()) >= 0.0 and float(u.max()) < 1.0
    counts = torch.histc(u, bins=256, min=0.0, max=1.0)
    expected = u.numel() / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - 255) < 5 * math.sqrt(2 * 255)
    centred = u - 0.5
    scale = 5 / 12 / math.sqrt(u.numel())
    assert abs(float(centred.mean())) < scale * math.sqrt(12)
    assert abs(float((centred[:, 1:] * centred[:, :-1]).mean())) < scale, "neighbours in a row"
    assert abs(float((centred[1:] * centred[:-1]).mean())) < scale, "neighbouring samples"
    later = uniform(below(keys, 1), 2000, torch.float64) - 0.5
    assert abs(float((centred * later).mean())) < scale, "two passes"


@pytest.mark.parametrize("share", [0.0, 1e-3, 0.5, 0.9, 1.0])
def test_the_chosen_are_as_many_as_they_should_be(share: float) -> None:
    kept = chosen(keys_of(("7",), PEOPLE), 4001, share)
    deviation = math.sqrt(share * (1 - share) / kept.numel())
    assert abs(float(kept.double().mean()) - share) <= 5 * deviation + 2**-31
