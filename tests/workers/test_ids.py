"""A person is found under each spelling of the id, whichever of them the recipe uses."""

from __future__ import annotations

import unicodedata

import pytest

from expunge_service.infra.tables import Removal
from tests.workers.worlds import World


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("by", ["subject", "samples"])
def test_a_request_in_another_spelling_is_forgotten(world: World, form: str, by: str) -> None:
    """The recipe writes é as e and an accent: it was answered ``no_match``, as if the person were not there."""
    model_id = world.live("accents", guarantee="proved")
    person = unicodedata.normalize(form, "ép1")  # type: ignore[arg-type]
    ids = [unicodedata.normalize(form, f"é{each}") for each in ("s3", "s4", "s5")]  # type: ignore[arg-type]
    request = world.delete(person) if by == "subject" else world.delete(samples=ids)
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("completed", None)
    assert world.task(request).samples == 3 and world.count(Removal) == 3
