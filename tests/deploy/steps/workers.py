"""Several workers, and workers that are stopped in a training."""

from __future__ import annotations

import json
import time

from tests.deploy import engine
from tests.deploy.programs import ran
from tests.deploy.project import eventually
from tests.deploy.step import Check, Step
from tests.deploy.steps.start import mounted
from tests.deploy.tables import write_lasting

HUNDRED = 100
WORKERS = 3
LASTING = "lasting"
STOPS = 3
"""as many as once refused the model"""
FOR_LONG_SECONDS = 600
IN_TRAINING_SECONDS = 4.0
TAKEN_OVER_SECONDS = 60.0


def hundred(check: Check) -> str:
    """Start three workers and send a hundred deletions."""
    three_workers(check)
    check.promises.delete_at_once(HUNDRED)
    return f"{HUNDRED} deletions with {WORKERS} workers"


def three_workers(check: Check) -> None:
    check.project.compose("up", "--detach", "--no-recreate", "--scale", f"worker={WORKERS}", *check.services())
    eventually(lambda: len(check.project.running("worker")), lambda count: count == WORKERS, 60)


def stops(check: Check) -> str:
    """Stop the worker that trains, three times: each gives its claim back in its time, and another goes on."""
    three_workers(check)
    write_lasting(check.project.recipes, FOR_LONG_SECONDS)
    taken = []
    with check.promises.console() as console:
        recipe = mounted(check, LASTING)
        console.post("/v1/models", {"name": LASTING, "recipe": recipe, "method": "retrain", "batch": 0})
        begun: list[str] = []
        for number in range(1, STOPS + 1):
            moment, trainer = eventually(
                lambda: last_begun(check, begun), lambda found: found[0] != "", TAKEN_OVER_SECONDS
            )
            begun.append(moment)
            time.sleep(IN_TRAINING_SECONDS)
            if number == STOPS:
                write_lasting(check.project.recipes, 0)
            code, seconds = engine.stopped(trainer)
            assert code == 0, f"{trainer} ended with {code} after {seconds:.1f} s:\n{engine.log(trainer)[-2000:]}"
            taken.append(seconds)
            ran("docker", "start", trainer)
            state = console.get(f"/v1/models/{LASTING}")
            assert state["status"] != "refused", f"after {number} stops: {state['reason']}"
        state = eventually(
            lambda: console.get(f"/v1/models/{LASTING}"), lambda found: found["status"] != "preparing", 120
        )
    assert state["status"] == "live", f"{state['status']}: {state['reason']}"
    return f"{STOPS} stops in a training, each ended by itself after {max(taken):.1f} s at most, and the model is live"


def last_begun(check: Check, before: list[str]) -> tuple[str, str]:
    """Return when the last training of the model began, and in which container; two empty words where none did.

    ``before`` are the moments of trainings whose workers were stopped.
    """
    found = [("", "")]
    for container in check.project.running("worker"):
        for line in engine.log(container).splitlines():
            at, _, told = line.partition(" ")
            if '"training begun"' in told and json.loads(told).get("model") == LASTING and at not in before:
                found.append((at, container))
    return max(found)


STEPS = (
    Step("hundred", "A hundred deletions with three workers.", 60, hundred, ("own-recipe",)),
    Step("stops", "A worker is stopped in a training, three times.", 90, stops, ("own-recipe",)),
)
