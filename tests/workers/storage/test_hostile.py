"""Safetensors files made to harm their reader: each is refused in words, without taking memory for what it claims."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest
import torch
from safetensors.torch import save

from expunge_workers.storage import checkpoint_format

MOST_BYTES = 8 << 20
GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file(header: Any, data: bytes = bytes(8), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(**changes: Any) -> bytes:
    return file({"a": GOOD | changes})


HOSTILE = {
    "empty": b"",
    "seven bytes": bytes(7),
    "no header": bytes(8),
    "header longer than the file": file({"a": GOOD}, length=10_000),
    "header of 2^63 bytes": file({"a": GOOD}, length=2**63),
    "header of 2^64 - 1 bytes": file({"a": GOOD}, length=2**64 - 1),
    "header cut in its middle": file({"a": GOOD}, length=20),
    "header is a list": file([GOOD]),
    "header is a number": file(b"7"),
    "header is null": file(b"null"),
    "header is not JSON": file(b"{'a': 1}"),
    "header is not UTF-8": file(b'{"\xff\xfe": 1}'),
    "header of ten thousand brackets": file(b"[" * 10_000),
    "header nested a hundred thousand deep": file(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a number of five thousand digits": file(b'{"a": ' + b"9" * 5000 + b"}"),
    "NaN in the header": file(b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}'),
    "infinity in the header": file(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, Infinity]}}'),
    "one name twice": file(b'{"a": %s, "a": %s}' % ((json.dumps(GOOD).encode(),) * 2)),
    "one field twice": file(b'{"a": {"dtype": "F32", "dtype": "F64", "shape": [2], "data_offsets": [0, 8]}}'),
    "metadata twice": file(b'{"__metadata__": {}, "__metadata__": {}}', b""),
    "metadata is a list": file({"__metadata__": ["x"], "a": GOOD}),
    "metadata of numbers": file({"__metadata__": {"x": 1}, "a": GOOD}),
    "a tensor that is a string": file({"a": "F32"}),
    "no dtype": file({"a": {"shape": [2], "data_offsets": [0, 8]}}),
    "no shape": file({"a": {"dtype": "F32", "data_offsets": [0, 8]}}),
    "no offsets": file({"a": {"dtype": "F32", "shape": [2]}}),
    "an unknown dtype": one(dtype="PICKLE"),
    "a dtype of another size": one(dtype="F64"),
    "a negative dimension": one(shape=[-2]),
    "two negative dimensions": one(shape=[-1, -2]),
    "a fraction as a dimension": one(shape=[2.5]),
    "a dimension of 2^62": one(shape=[2**62]),
    "dimensions whose product wraps to two": one(shape=[2**33, 2**31, 2]),
    "a terabyte": one(shape=[2**38], data_offsets=[0, 2**40]),
    "negative offsets": one(data_offsets=[-8, 0]),
    "offsets that run backwards": one(data_offsets=[8, 0]),
    "offsets beyond the end": one(data_offsets=[8, 16]),
    "three offsets": one(data_offsets=[0, 4, 8]),
    "offsets as text": one(data_offsets=["0", "8"]),
    "offsets of 2^64": one(data_offsets=[0, 2**64]),
    "two tensors on the same bytes": file({"a": GOOD, "b": GOOD}),
    "tensors that overlap": file({"a": GOOD, "b": GOOD | {"data_offsets": [4, 12]}}, bytes(12)),
    "a hole between two tensors": file({"a": GOOD, "b": GOOD | {"data_offsets": [12, 20]}}, bytes(20)),
    "trailing bytes": file({"a": GOOD}, bytes(9)),
    "bytes that nobody names": file({}, bytes(8)),
    "data cut short": file({"a": GOOD}, bytes(7)),
    "a pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a zip as torch.save writes it": b"PK\x03\x04" + bytes(64),
}


def test_the_corpus_is_large_and_its_template_is_good() -> None:
    assert len(HOSTILE) >= 30
    assert list(checkpoint_format.decode(one())[0]) == ["a"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_words_and_takes_no_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(checkpoint_format.Malformed) as refused:
            checkpoint_format.decode(HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(refused.value).strip()
    assert peak < MOST_BYTES + 4 * len(HOSTILE[name])


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"other": torch.zeros(2)}, {"format": checkpoint_format.FORMAT, "facts": "{}"}),
        ({"weights": torch.zeros(2)}, {"format": checkpoint_format.FORMAT}),
        ({"weights": torch.zeros(2)}, {"format": checkpoint_format.FORMAT, "facts": "{"}),
        ({"weights": torch.zeros(2)}, {"format": checkpoint_format.FORMAT, "facts": "[]"}),
        ({"weights": torch.zeros(2)}, {"format": checkpoint_format.FORMAT, "facts": "[" * 10_000}),
        ({"weights": torch.zeros(2)}, {}),
    ],
)
def test_a_state_that_is_not_one_is_refused(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    with pytest.raises(checkpoint_format.Malformed):
        checkpoint_format.decode_state(save(tensors, metadata))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\x02\0",
        b"\xff\x01",
        b"\0\xff" + bytes(40),
        b"\0\x01" + struct.pack("<I", 2**31),
        b"\0\x01\x02\0\0\0" + bytes(7),
    ],
)
def test_a_vector_that_is_not_one_is_refused(data: bytes) -> None:
    with pytest.raises(checkpoint_format.Malformed):
        checkpoint_format.unpack(data)
