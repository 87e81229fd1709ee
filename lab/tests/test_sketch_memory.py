"""A sketch that does not fit is refused with its figures before it is made."""

from __future__ import annotations

import pytest

from expunge_lab.methods.recollection_sketch import RecollectionSketch
from lab.tests.test_sketch import Setting, network, problem_of, setting_of, softmax
from lab.tests.test_sketch import digits as some_digits
from unlearning.methods.recollection import room
from unlearning.model.training import steps_per_epoch
from unlearning.settings import Training
from unlearning.types import Refused

HERE = Training(epochs=3, learning_rate=0.1, batch_size=10)


@pytest.fixture(scope="module")
def hidden() -> Setting:
    return setting_of(*problem_of(network(4), *some_digits(20), HERE))


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda _device: size)


def test_a_sketch_whose_steps_do_not_fit_is_refused_before_it_begins(
    hidden: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 3 * steps_per_epoch(hidden.problem, len(hidden.examples))
    size = steps * hidden.problem.dimension * 8
    free(monkeypatch, size)
    assert hidden.prepare(RecollectionSketch(rank=4)).tensors["step_weights"].nbytes == size
    free(monkeypatch, size - 1)
    with pytest.raises(Refused, match=f"{size:,} bytes, and {size - 1:,} are free on cpu") as refused:
        hidden.prepare(RecollectionSketch(rank=4))
    assert "rewind" in refused.value.hint


def test_a_linear_head_keeps_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = setting_of(*problem_of(softmax, *some_digits(20), HERE))
    free(monkeypatch, 0)
    assert "step_weights" not in linear.prepare(RecollectionSketch(rank=4)).tensors
