"""Sealed rows and files open unchanged, at their place and under their key, or not at all."""

from __future__ import annotations

import secrets

import pytest

from workers.storage.encryption import (
    CHUNK,
    SealedRow,
    Sealer,
    Unsealable,
    new_key,
    open_row,
    open_row_in_pieces,
    seal_row,
)

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]


@pytest.mark.parametrize("size", SIZES)
def test_a_sealed_file_opens_as_it_was(size: int) -> None:
    sealer, data = Sealer(new_key()), secrets.token_bytes(size)
    sealed = b"".join(sealer.seal([data[: size // 3], data[size // 3 :]]))
    assert sealer.unseal(sealed) == data


def test_equal_contents_seal_differently_and_nothing_shows_in_clear() -> None:
    sealer, data = Sealer(new_key()), b"canary" * 100
    first, second = (b"".join(sealer.seal([data])) for _ in range(2))
    assert first != second
    assert b"canary" not in first


@pytest.mark.parametrize("size", [10, 2 * CHUNK, 2 * CHUNK + 5])
def test_a_changed_cut_or_extended_file_does_not_open(size: int) -> None:
    sealer = Sealer(new_key())
    sealed = b"".join(sealer.seal([bytes(size)]))
    head = len(sealed) - size - 16 * max(1, -(-size // CHUNK))
    damaged = [
        sealed[:-1],
        sealed[: head + CHUNK + 16] if size > CHUNK else sealed[:head],
        sealed + b"\0",
        sealed[: head + 3] + bytes([sealed[head + 3] ^ 1]) + sealed[head + 4 :],
        sealed[:20] + bytes([sealed[20] ^ 1]) + sealed[21:],
        sealed[:head],
        b"",
    ]
    for data in damaged:
        with pytest.raises(Unsealable):
            sealer.unseal(data)


def test_chunks_cannot_change_places() -> None:
    sealer = Sealer(new_key())
    sealed = b"".join(sealer.seal([bytes(CHUNK) + b"\1" * CHUNK + b"\2"]))
    head, step = len(sealed) - 2 * CHUNK - 1 - 3 * 16, CHUNK + 16
    swapped = (
        sealed[:head] + sealed[head + step : head + 2 * step] + sealed[head : head + step] + sealed[head + 2 * step :]
    )
    with pytest.raises(Unsealable):
        sealer.unseal(swapped)


def test_another_key_is_named_as_the_reason() -> None:
    sealed = b"".join(Sealer(new_key()).seal([b"data"]))
    with pytest.raises(Unsealable, match="another EXPUNGE_SEALING_KEY_FILE"):
        Sealer(new_key()).unseal(sealed)


def test_a_row_opens_only_at_its_place_under_its_key() -> None:
    key = new_key()
    row = seal_row(key, "1/ada", b"vector")
    assert open_row(key, "1/ada", row) == b"vector"
    for wrong_key, place, wrong_row in (
        (key, "1/bob", row),
        (new_key(), "1/ada", row),
        (key, "1/ada", SealedRow(row.nonce, row.sealed[:-1] + bytes([row.sealed[-1] ^ 1]))),
        (key, "1/ada", SealedRow(row.nonce[:3], row.sealed)),
        (key, "1/ada", SealedRow(row.nonce, b"")),
        (key[:-1], "1/ada", row),
    ):
        with pytest.raises(Unsealable):
            open_row(wrong_key, place, wrong_row)


def test_every_row_has_a_nonce_of_its_own() -> None:
    key = new_key()
    assert len({seal_row(key, "1/ada", b"vector").nonce for _ in range(100)}) == 100


@pytest.mark.parametrize("step", [1, 7, 16, 100, 1000])
def test_a_row_that_comes_in_pieces_opens_as_it_does_whole(step: int) -> None:
    key, data = new_key(), secrets.token_bytes(137)
    row = seal_row(key, "1/ada", data)

    def opened(key: bytes, place: str, sealed: bytes) -> bytes:
        pieces = (sealed[start : start + step] for start in range(0, len(sealed), step))
        return b"".join(open_row_in_pieces(key, place, row.nonce, len(sealed), pieces))

    assert opened(key, "1/ada", row.sealed) == data == open_row(key, "1/ada", row)
    changed = bytes([row.sealed[0] ^ 1]) + row.sealed[1:]
    for wrong in (changed, row.sealed[:-1], row.sealed + b"x", row.sealed[:10], b""):
        with pytest.raises(Unsealable):
            opened(key, "1/ada", wrong)
    for wrong_key, place in ((new_key(), "1/ada"), (key, "1/bob")):
        with pytest.raises(Unsealable):
            opened(wrong_key, place, row.sealed)
