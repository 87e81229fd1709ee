"""Processes that die at a named point. They are forked from one that has imported the API, which takes a second."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from expunge_service.app import create_app
from expunge_service.infra.settings import Settings
from tests.harness.gathered import gather
from tests.harness.seams import DIE_AT, arm_from_environment

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", __name__])


def crash(point: str | None, target: Callable[..., object], *arguments: object, **environment: str) -> int | None:
    """Run a module's function in a separate process that dies at ``point``; return how the process ended.

    None: it dies of itself.
    """
    variables = environment if point is None else environment | {DIE_AT: point}
    process = _FORKS.Process(target=_run, args=(variables, target, arguments))
    process.start()
    process.join(60)
    return process.exitcode


def _run(variables: Mapping[str, str], target: Callable[..., object], arguments: tuple[object, ...]) -> None:
    os.environ.update(variables)
    arm_from_environment()
    target(*arguments)


def post(path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    """Make an API as the environment says, and send it one call."""
    with TestClient(create_app()) as client:
        client.post(path, json=body, headers=headers)


def post_together(path: str, body: dict[str, Any], authorization: str, keys: Sequence[str], answered: str) -> None:
    """Send an API one call for each key, all at once. Each that is accepted adds its key and the request's id to the
    file ``answered``.
    """
    app = create_app()
    gather(app, len(keys))
    with TestClient(app) as client, ThreadPoolExecutor(len(keys)) as pool:

        def call(key: str) -> None:
            answer = client.post(path, json=body, headers={"Authorization": authorization, "Idempotency-Key": key})
            if answer.status_code == 202:
                with Path(answered).open("a") as lines:
                    lines.write(f"{key} {answer.json()['id']}\n")

        list(pool.map(call, keys))


def variables_of(settings: Settings) -> dict[str, str]:
    """Return the environment of an API with the same home and database."""
    return {"EXPUNGE_HOME": str(settings.home), "EXPUNGE_DATABASE_URL": settings.database_url}
