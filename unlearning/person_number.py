"""A number for each person, which names nobody without its key: rows of a table may carry it in place of the id."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import torch
from torch import Tensor

from unlearning.accounting.ids import nfc
from unlearning.types import RecipeError


def person_numbers(people: Sequence[str], key: bytes) -> Tensor:
    """Return a number (n,) int64 above 0 for each person, by a keyed digest: without the key it names no person.

    Raises:
        RecipeError: the key has fewer than 16 bytes.
    """
    if len(key) < 16:
        raise RecipeError(f"The key of the person numbers has {len(key)} bytes.", "Give 16 secret bytes or more.")
    known: dict[str, int] = {}
    for person in people:
        if person not in known:
            digest = hmac.digest(key, nfc(person).encode(), hashlib.sha256)
            known[person] = max(1, int.from_bytes(digest[:8], "big") >> 1)
    return torch.tensor([known[person] for person in people], dtype=torch.int64)
