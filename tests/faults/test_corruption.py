"""A part of the corruption drill in the default suite, and that its damage is damage."""

from __future__ import annotations

import random

import pytest

from tests.faults import corruption, verifiers


def test_every_corruption_is_seen() -> None:
    result = corruption.run(seed=7, scale=0.06)
    assert result.clean, result.notes
    assert result.cases >= 30


def test_spoiled_bytes_are_never_the_same_bytes() -> None:
    chance = random.Random(0)
    for data in (b"\0", b"\0" * 40, bytes(range(64))):
        assert all(corruption.spoiled(data, chance) != data for _ in range(200))


def test_a_verifier_that_accepts_whatever_is_signed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the drill counts where nothing is planted: tests/service/certificates/test_verifiers.py."""
    monkeypatch.setattr("tests.service.certificates.test_verifiers.by_command", lambda *_: True)
    result = verifiers.run(seed=7, scale=0)
    assert result.undetected_corruptions > 200 and result.faults > 220
