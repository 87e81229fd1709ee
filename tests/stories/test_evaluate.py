"""`expunge lab evaluate NAME`: a registered model's recipe and policy, measured beside the running service."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.harness.stack import Stack


@pytest.mark.drill
def test_a_registered_model_is_evaluated_with_its_recipe_and_policy(stack: Stack) -> None:
    name = stack.live("tiny", noise_std=0.02, max_distance=1e-4, epsilon=2.0)
    arguments = ["--methods", "recollection", "--seeds", "1", "--shadows", "0", "--trials", "0", "--no-plot", "--json"]
    environment = stack.environment | {"EXPUNGE_URL": stack.account.url, "EXPUNGE_API_KEY": stack.account.api_key}
    done = subprocess.run(
        [sys.executable, "-m", "expunge_client.cli.main", "lab", "evaluate", name, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    untouched, row = json.loads(done.stdout)
    assert (untouched["method"], row["method"]) == ("untouched", "recollection")
    assert row["distance_left"] < 1.0
    assert (row["claim"]["noise_std"], row["claim"]["max_distance"]) == (0.02, 1e-4)
