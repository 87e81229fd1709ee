"""Two runs that differ: where, and no value of either."""

from __future__ import annotations

from dataclasses import replace
from struct import pack

import torch

from expunge.workers.training.first_difference import first_difference
from unlearning.artefact import tensor_of
from unlearning.model.problem import Slot
from unlearning.model.user_code.own_training import Fitted, packed

LAYOUT = (Slot("0.weight", (2, 3), 0, 6), Slot("0.bias", (2,), 6, 8))
LEFT = Fitted(torch.arange(8.0), *packed({"moments": torch.zeros(4), "steps": 3}))


def place(one: Fitted, two: Fitted) -> str:
    return first_difference(one, two, LAYOUT, of_bytes=False)


def test_the_first_tensor_and_element_that_differ_are_named() -> None:
    assert place(LEFT, LEFT) == ""
    other = LEFT.weights.clone()
    other[7] = -1.0
    assert place(LEFT, replace(LEFT, weights=other)) == "0.bias, element 1 of 2"
    other[2] = -1.0
    assert place(LEFT, replace(LEFT, weights=other)) == "0.weight, element 2 of 6"


def test_what_train_returned_is_compared_too() -> None:
    moments, steps, shape = (
        Fitted(LEFT.weights, *packed(state))
        for state in (
            {"moments": torch.tensor([0, 0, 1.0, 0]), "steps": 3},
            {"moments": torch.zeros(4), "steps": 4},
            {"moments": torch.zeros(5), "steps": 3},
        )
    )
    assert place(LEFT, moments) == "tensor 1 of what train returned, element 2 of 4"
    assert place(LEFT, steps) == "what train returned, apart from its tensors"
    assert place(LEFT, shape) == "tensor 1 of what train returned, of float32 (4,) in one run alone"


def test_bytes_differ_at_an_offset_and_in_text_at_a_line() -> None:
    """CatBoost writes a guid and a clock into its JSON."""
    sides = [b'{"trees": [1],\n "model_guid": "%s"}' % guid for guid in (b"1f-2", b"1f-3")]
    one, two = (Fitted(tensor_of(each)) for each in sides)
    found = first_difference(one, two, (), of_bytes=True)
    assert found == f"byte {len(sides[0]) - 3} of {len(sides[0])}, line 2" and "1f" not in found
    assert first_difference(one, one, (), of_bytes=True) == ""
    longer = Fitted(tensor_of(sides[0] + b" "))
    assert first_difference(one, longer, (), of_bytes=True) == f"byte {len(sides[0])} of {len(sides[0])}, line 2"
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    safetensors = [Fitted(tensor_of(pack("<Q", len(header)) + header + value)) for value in (b"a", b"b")]
    size = 8 + len(header) + 1
    assert first_difference(*safetensors, (), of_bytes=True) == f"byte {size - 1} of {size}"
