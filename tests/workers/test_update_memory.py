"""A large model's release stays under four checkpoints: `pytest -m drill tests/workers/test_release_memory.py -s`."""

from __future__ import annotations

import pytest

from benchmarks.release_memory import CHECKPOINT, MOST, measured


@pytest.mark.drill
def test_updates_of_a_45_megabyte_model_hold_less_than_four_checkpoints() -> None:
    for label, taken in measured().items():
        print(f"update{label}: {taken / CHECKPOINT:.2f} checkpoints")
        assert CHECKPOINT < taken < MOST * CHECKPOINT, label
