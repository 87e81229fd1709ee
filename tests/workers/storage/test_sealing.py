"""Sealed rows, files and notes open unchanged, at their place and under their key, or not at all."""

from __future__ import annotations

import secrets

import pytest

from expunge_service.infra.stores import Damaged
from expunge_workers.storage.encryption import NONCE_BYTES, TAG_BYTES, Sealer, new_key

SIZES = [0, 1, 15, 16, 17, 1 << 20, (3 << 20) + 5]


@pytest.mark.parametrize("size", SIZES)
def test_sealed_data_open_as_they_were(size: int) -> None:
    sealer, data = Sealer(new_key()), secrets.token_bytes(size)
    sealed = sealer.seal("1/ada", data)
    assert len(sealed) == NONCE_BYTES + size + TAG_BYTES
    assert sealer.open("1/ada", sealed) == data


def test_equal_contents_seal_differently_and_nothing_shows_in_clear() -> None:
    sealer, data = Sealer(new_key()), b"canary" * 100
    first, second = (sealer.seal("1/ada", data) for _ in range(2))
    assert first[NONCE_BYTES:] != second[NONCE_BYTES:]
    assert b"canary" not in first


def test_every_row_has_a_nonce_of_its_own() -> None:
    sealer = Sealer(new_key())
    assert len({sealer.seal("1/ada", b"vector")[:NONCE_BYTES] for _ in range(100)}) == 100


@pytest.mark.parametrize("size", [1, 10, (2 << 20) + 5])
def test_changed_cut_extended_or_reordered_data_do_not_open(size: int) -> None:
    sealer = Sealer(new_key())
    sealed = sealer.seal("1/ada", secrets.token_bytes(size))
    middle = NONCE_BYTES + size // 2
    damaged = [
        sealed[:-1],
        sealed[:middle],
        sealed[:-TAG_BYTES],
        sealed + b"\0",
        bytes([sealed[0] ^ 1]) + sealed[1:],
        sealed[:middle] + bytes([sealed[middle] ^ 1]) + sealed[middle + 1 :],
        sealed[:-1] + bytes([sealed[-1] ^ 1]),
        sealed[:NONCE_BYTES] + sealed[middle:-TAG_BYTES] + sealed[NONCE_BYTES:middle] + sealed[-TAG_BYTES:] + b"",
        sealed[3:],
        sealed[:NONCE_BYTES],
        b"",
    ]
    for data in damaged:
        if data != sealed:
            with pytest.raises(Damaged):
                sealer.open("1/ada", data)


def test_sealed_data_open_only_at_their_place_under_their_key() -> None:
    sealer = Sealer(new_key())
    sealed = sealer.seal("1/ada", b"vector")
    with pytest.raises(Damaged):
        sealer.open("1/bob", sealed)
    with pytest.raises(Damaged, match="another key"):
        Sealer(new_key()).open("1/ada", sealed)
    with pytest.raises(Damaged, match="EXPUNGE_SECRETS"):
        Sealer(new_key()).open("state", sealed)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_damaged(length: int) -> None:
    """AES takes keys of other lengths as errors of the caller, or as weaker keys."""
    with pytest.raises(Damaged, match=f"{length} bytes"):
        Sealer(bytes(length))
