"""``python -m tests.card``: whole on the pretend device, on the processor what is no test of the suite itself."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.card.__main__ import EXPECTED_SECONDS, REPORT, STEPS, main
from tests.harness.device import folder

EVERY_STEP = [step.name for step in STEPS]
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("card")]  # both write one report


@pytest.mark.parametrize(
    ("device", "steps"),
    [("cpu", ["speed", "torchrun"]), pytest.param("pretend", EVERY_STEP, marks=pytest.mark.drill)],
)
def test_every_step_passes_and_is_reported(device: str, steps: Sequence[str]) -> None:
    if device == "pretend" and folder() is None:
        pytest.skip("unverified here: no C++ compiler builds the pretend device")
    assert main(["--device", device, "--quick", *steps]) == 0
    record = json.loads(REPORT.read_text())
    assert record["device"] == device
    assert {step["step"]: step["passed"] for step in record["steps"]} == dict.fromkeys(steps, True)
    assert {row["sides"]["device"] for row in record["rows"]} == {"a CPU"}


def test_a_step_that_fails_is_named_and_ends_the_command_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "no-such-device", "--quick", "contract"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert "no-such-device" in json.loads(REPORT.read_text())["steps"][0]["found"]


def test_every_step_has_an_estimate() -> None:
    assert EXPECTED_SECONDS.keys() == {*EVERY_STEP}
