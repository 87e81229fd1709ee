"""The collector of cycles rests for a while, and for no longer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from workers.runtime.collector import collector_at_rest


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_rests_until_the_end_whatever_the_end() -> None:
    with pytest.raises(ValueError, match="an end"), collector_at_rest():
        assert not gc.isenabled()
        raise ValueError("an end")
    assert gc.isenabled()


def test_within_another_rest_it_goes_on_resting() -> None:
    with collector_at_rest():
        with collector_at_rest():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_process_that_wants_no_collector_gets_none() -> None:
    gc.disable()
    with collector_at_rest():
        pass
    assert not gc.isenabled()
