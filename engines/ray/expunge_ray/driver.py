"""The process that speaks with the cluster: ``python -m expunge_ray.driver``, a line of JSON in, a line of JSON out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError

from expunge_ray.actor import Part
from expunge_workers.runtime.kernel import die_with_parent

NAMESPACE = "expunge"
LOOK_SECONDS = 5.0
"""that an actor may take to say how its program is: one that waits for a machine says nothing"""
END_SECONDS = 30.0
"""that an actor may take to end its program; after it the actor is killed, and the program with it"""
PAUSE_SECONDS = 0.05


def submit(name: str, place: str, key: str, processes: int, cards: int) -> None:
    """Make the actor of this name, or adopt it. It is made again wherever its machine or its process ends."""
    options = {"name": name, "lifetime": "detached", "get_if_exists": True, "max_restarts": -1}
    ray.remote(Part).options(**options, num_cpus=processes, num_gpus=cards).remote(place, name, bytes.fromhex(key))


def look(name: str) -> str | None:
    """Return why no program of this name runs; None: it runs, or waits for a machine."""
    actor = _actor(name)
    if actor is None:
        return "Ray has no actor of the part any more"
    try:
        status: Any = ray.get(actor.exit_status.remote(), timeout=LOOK_SECONDS)
    except (GetTimeoutError, RayActorError):  # it waits for a machine, or is made again
        return None
    return None if status is None else f"the program of the part ended with {status}"


def cancel(name: str) -> None:
    """End the program and the actor; when this returns there is neither."""
    actor = _actor(name)
    if actor is None:
        return
    with contextlib.suppress(GetTimeoutError, RayActorError):
        ray.get(actor.end.remote(), timeout=END_SECONDS)
    ray.kill(actor, no_restart=True)
    while _actor(name) is not None:
        time.sleep(PAUSE_SECONDS)


def _actor(name: str) -> ActorHandle[Any] | None:
    with contextlib.suppress(ValueError):  # there is none of this name
        return ray.get_actor(name)
    return None


def main() -> None:
    """Answer until the worker ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    verbs: dict[str, Callable[..., str | None]] = {"submit": submit, "look": look, "cancel": cancel}
    for line in sys.stdin:
        words = json.loads(line)
        try:
            if not ray.is_initialized():
                ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), namespace=NAMESPACE, log_to_driver=False)
            answer = {"answer": verbs[words.pop("do")](**words)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else repr(error)}
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
