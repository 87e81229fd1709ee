"""Tables with a row for each person, as the embeddings of a recommender, of a size that does not follow the people.

A table of ``len(people)`` rows changes its shape when an erased person's data go, and a row that is kept free shows
where the person stood. So samples carry keyed numbers of their people, and the training gives rows by the rank of the
number among the people that it was handed. The model saves which number has which row.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unlearning.accounting.ids import nfc
from unlearning.types import RecipeError

DIGITS, BASE = 4, 2**16
"""of a number in the table: in 32-bit weights each digit is exact"""


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


class Index(nn.Module):
    """Find the row of each person: numbers (...,) int64 -> rows (...,) int64; ``room`` for a person without one.

    Give the table that it indexes ``rows`` rows, one more than ``room``: the last one answers for the unknown.

    Args:
        room: for how many people there are rows: a constant, with room to grow.

    Raises:
        RecipeError: no room.
    """

    people: Tensor

    def __init__(self, room: int) -> None:
        super().__init__()
        if room < 1:
            raise RecipeError(f"An index has room for {room} people.", "Give 1 or more.")
        self.room, self.rows = room, room + 1
        self.register_buffer("people", torch.zeros(room, DIGITS, dtype=torch.int32))

    def numbers(self) -> Tensor:
        """Return the number of each row's person, (room,) int64; 0 where the row is free. Free rows come last."""
        digits = self.people.round() if self.people.is_floating_point() else self.people
        places = torch.tensor([BASE**place for place in range(DIGITS)], device=self.people.device)
        return (digits.long() * places).sum(dim=1)

    def forward(self, numbers: Tensor) -> Tensor:
        order = self.numbers().sort()
        place = torch.searchsorted(order.values, numbers.contiguous()).clamp(max=self.room - 1)
        known = (order.values[place] == numbers) & (numbers > 0)
        return torch.where(known, order.indices[place], self.room)

    def add(self, numbers: Tensor) -> None:
        """Give the next free rows to those of the people (n,) int64 without one, in the order of their numbers.

        Raises:
            RecipeError: there is no row left, or a number is not above 0.
        """
        if bool((numbers < 1).any()):
            raise RecipeError("A person's number is below 1.", "Take them from ul.person_numbers.")
        there = self.numbers()
        used = int((there > 0).sum())
        fresh = torch.unique(numbers[~torch.isin(numbers, there)])
        if used + len(fresh) > self.room:
            what = f"{used + len(fresh)} people need a row; the index has room for {self.room}."
            raise RecipeError(what, "Raise its room well beyond them, and train again.")
        for place in range(DIGITS):
            self.people[used : used + len(fresh), place] = (fresh // BASE**place % BASE).to(self.people.dtype)
