"""A number for each person, which names nobody without its key."""

from __future__ import annotations

import pytest

import unlearning as ul

KEY = b"sixteen bytes or more"


def test_numbers_are_keyed_and_do_not_name_the_person() -> None:
    assert ul.person_numbers(["a", "b", "a"], KEY).tolist() == ul.person_numbers(["a", "b", "a"], KEY).tolist()
    one, other, again = ul.person_numbers(["a", "b", "a"], KEY).tolist()
    assert one == again != other and one != int(ul.person_numbers(["a"], KEY + b"!"))
    with pytest.raises(ul.RecipeError, match="5 bytes"):
        ul.person_numbers(["a"], b"short")
