"""A model that is bytes has no weights to compare: each program of the laboratory says so, and does nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.workers.runtime import recipes
from expunge.workers.runtime.model import device_of, opened
from expunge_lab.attack.rehearsal import prepare
from expunge_lab.costs import measured
from expunge_lab.evaluate import main
from unlearning.accounting.policy import Policy
from unlearning.types import Refused

FOLDER = Path(__file__).parents[2] / "tests" / "workers" / "recipes"
RECIPE = FOLDER / "of_bytes.py"


def test_evaluate_says_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", str(RECIPE), "--no-plot", "--methods", "shards"]) == 2
    assert "The model is bytes" in " ".join(capsys.readouterr().err.split())


def test_an_attack_says_no() -> None:
    policy = Policy("shards")
    bench = opened(recipes.load(FOLDER, "of_bytes"), policy, device_of("cpu"))
    with pytest.raises(Refused, match=r"The model is bytes.*registration without the person"):
        prepare(bench, policy)


def test_what_methods_cost_is_not_measured() -> None:
    with pytest.raises(Refused, match=r"The model is bytes.*both are exact"):
        measured(RECIPE, ["--seconds", "10"])
