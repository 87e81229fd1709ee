"""What runs on a card runs on the pretend device: the contract of every method, the service, the refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.device import folder, on_device

ROOT = Path(__file__).parents[1]
EVERY_METHOD = "tests/contract/test_contract.py"
pytestmark = pytest.mark.timeout(900)  # each test is a suite of its own: a minute or two on an idle core


def passed(*arguments: str, **variables: str) -> int:
    """Return how many tests pass in a process that has the device."""
    if folder() is None:
        pytest.skip("unverified here: no C++ compiler builds the pretend device")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**on_device(**variables), "PYTEST_ADDOPTS": ""},  # whose further -q would hide the count
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) passed", done.stdout)
    return int(counted[1]) if counted else 0


@pytest.mark.parametrize(
    ("chosen", "fewest"),
    [
        pytest.param(("-k", "later_release"), 30, id="two-updates"),
        pytest.param(("-m", ""), 400, id="whole", marks=[pytest.mark.drill, pytest.mark.timeout(1800)]),
    ],
)
def test_every_method_keeps_the_contract_with_states_that_move_between_two_updates(
    chosen: tuple[str, ...], fewest: int
) -> None:
    assert passed(EVERY_METHOD, *chosen, EXPUNGE_CONTRACT_DEVICE="pretend") >= fewest


@pytest.mark.parametrize(
    ("chosen", "fewest"),
    [
        pytest.param(("-m", "not drill"), 30, id="rooms"),
        pytest.param(("-m", "drill"), 1, id="processes", marks=pytest.mark.drill),
    ],
)
def test_the_service_the_recipes_and_the_refusals_on_the_device(chosen: tuple[str, ...], fewest: int) -> None:
    assert passed("tests/device", *chosen) >= fewest
