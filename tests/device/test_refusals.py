"""What a card refuses, the pretend device refuses too: a test that passes on it means something."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from expunge_workers.runtime import device
from expunge_workers.runtime.failures import lacks_memory, may_pass

HERE = torch.device("pretend")
INDEX = torch.tensor([1, 0])


def there(tensor: Tensor) -> Tensor:
    return tensor.to(HERE)


@pytest.mark.parametrize(
    "mixing",
    [
        lambda: there(torch.ones(3)) + torch.ones(3),
        lambda: torch.ones(3) @ there(torch.ones(3)),
        lambda: torch.ones(3)[there(INDEX)],
        lambda: torch.cat([torch.ones(3), there(torch.ones(3))]),
        lambda: there(torch.ones(3)).index_select(0, INDEX),
        lambda: torch.tensor(1.0).add_(there(torch.tensor(1.0))),
        lambda: torch.linalg.solve(there(torch.eye(2)), torch.ones(2)),
        lambda: torch.nn.functional.cross_entropy(there(torch.ones(2, 2)), INDEX),
        lambda: torch.isin(INDEX, there(INDEX)),
    ],
)
def test_tensors_of_two_devices_are_refused(mixing: Callable[[], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="device"):
        mixing()


def test_a_number_and_places_may_come_from_the_host() -> None:
    assert (there(torch.ones(3)) * torch.tensor(2.0))[INDEX].tolist() == [2.0, 2.0]


def test_a_generator_of_the_host_is_refused() -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device=HERE, generator=torch.Generator())
    one, other = (torch.randn(3, device=HERE, generator=torch.Generator(HERE).manual_seed(1)) for _ in range(2))
    assert torch.equal(one, other)


def test_more_memory_than_there_is_is_refused_and_what_is_given_back_can_be_taken_again() -> None:
    torch.ops.pretend.room(torch.ops.pretend.taken() + 2**20)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.ones(2**19, device=HERE)
    assert lacks_memory(raised.value) and device.answers(HERE)
    for _ in range(3):
        torch.ones(2**17, device=HERE)


def test_memory_that_was_freed_is_refused() -> None:
    tensor = torch.ones(3, device=HERE)
    alias = torch.empty(0, device=HERE)
    torch.ops.pretend.alias(alias, tensor)
    assert alias.tolist() == [1.0, 1.0, 1.0]
    del tensor
    with pytest.raises(RuntimeError, match="illegal memory access"):
        alias.tolist()


def test_everything_after_an_index_out_of_bounds_is_refused() -> None:
    with pytest.raises(torch.AcceleratorError) as raised:
        torch.ones(3, device=HERE)[torch.tensor([7], device=HERE)]
    assert may_pass(raised.value) and not device.answers(HERE)
    with pytest.raises(torch.AcceleratorError):
        torch.ones(3, device=HERE)
    device.give_back_memory(HERE)  # refused as well, and it does not raise


def test_sums_come_in_any_order_unless_algorithms_are_deterministic() -> None:
    places, values = torch.randint(3, (1000,)).to(HERE), torch.randn(1000).to(HERE)

    def sums() -> set[tuple[float, ...]]:
        return {tuple(torch.zeros(3, device=HERE).index_add(0, places, values).tolist()) for _ in range(8)}

    assert len(sums()) > 1
    torch.use_deterministic_algorithms(True)
    try:
        assert len(sums()) == 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_forked_process_cannot_use_it() -> None:
    torch.ones(1, device=HERE)
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device=HERE)
            os._exit(0)
        except RuntimeError:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
