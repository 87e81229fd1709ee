"""A process of the service with limits that a test chose: ``python -m tests.harness.process LIMITS NAME PORT``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from expunge_service.infra.limits import Limits
from expunge_service.infra.python import PYTHON
from tests.harness.seams import arm_from_environment
from tests.harness.source import SOURCE_PATH

FAST = Limits(sweep_seconds=0.3, lease_seconds=5.0)
"""short, so that a test need not wait for what the scheduler does later"""
ANY_DISTANCE = replace(FAST, distance_left=1e9)
"""every method is taken: a benchmark of the service is not about what it leaves"""


def command(name: str, port: int, limits: Limits) -> list[str]:
    """Return the command of ``api``, ``worker``, ``updater`` or ``scheduler``. It needs ``PATH_OF_TESTS``."""
    return [*PYTHON, "-m", "tests.harness.process", json.dumps(asdict(limits)), name, str(port)]


PATH_OF_TESTS = {"PYTHONPATH": os.pathsep.join(filter(None, [SOURCE_PATH, os.environ.get("PYTHONPATH")]))}


def main(arguments: Sequence[str]) -> int:
    chosen, name, port = arguments
    limits = Limits(**json.loads(chosen))
    arm_from_environment()
    if name != "api":
        from expunge_workers.main import main as workers  # noqa: PLC0415

        return workers([name], limits)
    import uvicorn  # noqa: PLC0415 (workers and scheduler start without it)

    from expunge_service.serve import config  # noqa: PLC0415

    uvicorn.Server(config("127.0.0.1", int(port), limits=limits)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
