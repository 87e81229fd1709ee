"""A worker's side: it speaks with Ray through a process of its own, which may be killed at any time.

A process that has lost its cluster hangs at its end. Nothing of a part is in it: the cluster has the actors, and the
files have what they made.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
from pathlib import Path
from typing import Any

from expunge_service.infra.python import PYTHON
from expunge_workers.runtime.engine import EngineAway, PartJob
from expunge_workers.runtime.walls import listed

ANSWER_SECONDS = 120.0
"""that the cluster may take to answer: the first answer begins with joining it"""


class RayRunner:
    """Runs the program of each part as the child of a detached actor that has the part's name."""

    def __init__(self) -> None:
        self._driver: subprocess.Popen[str] | None = None
        self._asking = threading.Lock()

    def submit(self, job: PartJob) -> None:
        cards = job.processes if job.device.startswith("cuda") else 0
        words = {"place": job.place, "key": job.key.hex(), "processes": job.processes, "cards": cards}
        self._ask("submit", job.name, **words)

    def look(self, name: str) -> str | None:
        why: str | None = self._ask("look", name)
        return why

    def cancel(self, name: str) -> None:
        self._ask("cancel", name)

    def _ask(self, what: str, name: str, **words: Any) -> Any:
        """Return what the driver answers. Raises EngineAway: it ended, or does not answer, or the cluster refuses."""
        with self._asking:
            driver = self._running()
            try:
                answer = _answer(driver, {"do": what, "name": name, **words})
            except (OSError, ValueError, TimeoutError) as error:
                driver.kill()
                driver.wait()
                raise EngineAway(f"Ray's driver did not answer: {type(error).__name__}") from None
        if "failed" in answer:
            raise EngineAway(f"Ray's cluster did not {what} a part: {answer['failed']}")
        return answer["answer"]

    def _running(self) -> subprocess.Popen[str]:
        """Return the driver, which is started where none runs."""
        if self._driver is None or self._driver.poll() is not None:
            rays = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
            self._driver = subprocess.Popen(  # noqa: S603 (our own words)
                [*PYTHON, "-m", "expunge_ray.driver"],
                env=listed(os.environ) | rays | {"HOME": str(Path.home())},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        return self._driver


def _answer(driver: subprocess.Popen[str], words: dict[str, Any]) -> dict[str, Any]:
    """Raises OSError, ValueError: the driver ended. TimeoutError."""
    if driver.stdin is None or driver.stdout is None:
        raise ValueError("the driver has no channels")
    driver.stdin.write(f"{json.dumps(words)}\n")
    driver.stdin.flush()
    if not select.select([driver.stdout], [], [], ANSWER_SECONDS)[0]:
        raise TimeoutError
    answer: dict[str, Any] = json.loads(driver.stdout.readline())
    return answer
