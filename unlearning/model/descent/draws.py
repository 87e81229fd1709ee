"""Random numbers that follow from a key and a place alone, and not from the rest of the batch.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014, figure 17):
word j of the stream of key k is ``mix(k + (j + 1) gamma)``. A word of one stream is the key of another, so keys form a
tree: person, sample, pass, place in the model. All arithmetic is that of 64-bit words, the same on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


GAMMA = _signed(0x9E3779B97F4A7C15)
MIXERS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))
LAST_SHIFT = 31
BLOCK = 2**16
"""words that are mixed at a time: they stay in a processor's cache"""


def keys_of(words: Sequence[str], people: Sequence[str]) -> Tensor:
    """Return a key for each sample, (n,) int64 on the CPU, from ``words`` and its person.

    Samples of one person differ by their order. So a key does not change when other people leave.
    """
    firsts: dict[str, int] = {}
    ranks: dict[str, int] = {}
    first, rank = [], []
    for person in people:
        if person not in firsts:
            digest = hashlib.sha256("\n".join((*words, person)).encode()).digest()
            firsts[person] = int.from_bytes(digest[:8], "big", signed=True)
        first.append(firsts[person])
        rank.append(ranks.get(person, 0))
        ranks[person] = rank[-1] + 1
    return _mix(torch.tensor(first) + (torch.tensor(rank) + 1) * GAMMA)


def below(keys: Tensor, place: int) -> Tensor:
    """Return the keys (n,) of branch ``place`` below ``keys`` (n,)."""
    return _mix(keys + _signed((place + 1) * GAMMA % 2**64))


def words(keys: Tensor, count: int) -> Tensor:
    """Return the first ``count`` words of each key's stream, (n, count) int64, each bit 0 or 1 with chance 1/2."""
    steps = torch.arange(1, count + 1, device=keys.device) * GAMMA
    drawn = torch.empty(len(keys), count, dtype=torch.int64, device=keys.device)
    rows = max(1, BLOCK // max(1, count))
    for part, some in zip(torch.split(drawn, rows), torch.split(keys, rows), strict=True):
        _mix(torch.add(some.unsqueeze(1), steps, out=part))
    return drawn


def uniform(keys: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``count`` numbers in [0, 1) for each key, (n, count): multiples of 2^-24, exact in ``dtype``."""
    return ((words(keys, count) >> 40) & (2**24 - 1)).to(dtype) * 2.0**-24


def chosen(keys: Tensor, count: int, share: float) -> Tensor:
    """Return ``count`` booleans for each key, (n, count), each true with chance ``share`` (to within 2^-32)."""
    halves = words(keys, (count + 1) // 2).view(torch.int32)[:, :count]
    return halves < min(2**31 - 1, round(share * 2**32) - 2**31)


def _mix(words: Tensor) -> Tensor:
    """Replace 64-bit words by scrambled ones, in place. Shifts are those of words without a sign."""
    for shift, factor in MIXERS:
        words.bitwise_xor_((words >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return words.bitwise_xor_((words >> LAST_SHIFT).bitwise_and_(2 ** (64 - LAST_SHIFT) - 1))
