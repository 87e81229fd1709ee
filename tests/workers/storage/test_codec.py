"""Tensors come back from bytes as they were, and odd bytes are refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save

from expunge_workers.storage import checkpoint_format
from unlearning.types import State

TENSORS = {
    "b.weight": torch.randn(3, 4),
    "a": torch.arange(5),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "half": torch.randn(7).to(torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "transposed": torch.randn(2, 6).T,
    "empty": torch.empty(0, 3),
}


def test_our_bytes_are_read_by_the_safetensors_library() -> None:
    read = load(checkpoint_format.encode(TENSORS, {"format": "pt"}))
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in TENSORS.items())


def test_the_order_of_the_tensors_does_not_change_the_bytes() -> None:
    first = checkpoint_format.encode(TENSORS, {})
    second = checkpoint_format.encode(dict(reversed(TENSORS.items())), {})
    assert first == second


def test_a_state_comes_back_with_its_facts() -> None:
    state = State(torch.randn(5, dtype=torch.float64), {"order": torch.arange(3)}, {"report": {"x": 1.5}, "n": 3})
    read, evidence = checkpoint_format.decode_state(checkpoint_format.encode_state(state, {"bound": 1e-9}))
    assert torch.equal(read.weights, state.weights)
    assert torch.equal(read.tensors["order"], state.tensors["order"])
    assert read.facts == state.facts
    assert evidence == {"bound": 1e-9}


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(checkpoint_format.Malformed, match="knows"):
        checkpoint_format.decode_state(save({"weights": torch.zeros(2)}, {"format": "expunge-state-9"}))


@pytest.mark.parametrize("vector", [torch.randn(5), torch.randn(2, 3, dtype=torch.float64), torch.tensor(1.0)])
def test_a_vector_comes_back_bit_for_bit(vector: torch.Tensor) -> None:
    read = checkpoint_format.unpack(checkpoint_format.pack(vector))
    assert read.dtype == vector.dtype
    assert torch.equal(read, vector)


def test_a_tensor_that_two_names_share_is_written_for_both() -> None:
    shared = torch.randn(3, 4)
    read, _ = checkpoint_format.decode(checkpoint_format.encode({"a": shared, "b": shared, "c": shared[:2]}, {}))
    assert torch.equal(read["a"], shared) and torch.equal(read["b"], shared) and torch.equal(read["c"], shared[:2])


def test_tensors_that_the_format_does_not_carry_are_refused() -> None:
    with pytest.raises(checkpoint_format.Malformed, match="safetensors"):
        checkpoint_format.encode({"a": torch.zeros(2, dtype=torch.complex128)}, {})


def test_what_we_read_is_what_the_library_reads() -> None:
    data = save({name: tensor.contiguous() for name, tensor in TENSORS.items()}, {"format": "pt"})
    read, metadata = checkpoint_format.decode(data)
    wanted = load(data)
    assert metadata == {"format": "pt"}
    assert read.keys() == wanted.keys()
    assert all(torch.equal(read[name], wanted[name]) and read[name].dtype == wanted[name].dtype for name in wanted)


def test_a_header_that_names_a_tensor_twice_is_refused() -> None:
    entry = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = ("{" + entry + "," + entry + "}").encode()
    with pytest.raises(checkpoint_format.Malformed, match="twice"):
        checkpoint_format.decode(len(header).to_bytes(8, "little") + header + bytes(4))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b"not json!",
        save({"a": torch.zeros(4)})[:-1],
        b"\x80\x04\x95pickled",
    ],
)
def test_bytes_of_something_else_are_refused(data: bytes) -> None:
    with pytest.raises(checkpoint_format.Malformed):
        checkpoint_format.decode(data)


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("a", torch.tensor([1.0, float("nan")]), "NaN"),
        ("a", torch.tensor([float("inf")]), "infinity"),
        ("a", torch.empty(0), "empty"),
        ("../a", torch.zeros(1), "name"),
        ("a\n", torch.zeros(1), "name"),
    ],
)
def test_weights_that_no_checkpoint_may_carry_are_refused(name: str, tensor: torch.Tensor, reason: str) -> None:
    with pytest.raises(checkpoint_format.Malformed, match=reason):
        checkpoint_format.admit({name: tensor})


def test_a_checkpoint_carries_no_metadata_but_its_format() -> None:
    data = checkpoint_format.encode({"a": torch.zeros(1)}, {"format": "pt"})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}
