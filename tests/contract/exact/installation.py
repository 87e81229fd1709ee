"""An installation of its own for the recipes in ``kinds``, and what it publishes; also as a program, in a process that
has held none of them before.

``python -m tests.contract.exact.installation FOLDER < ORDER`` registers each model of the order without some people,
and writes each published file into FOLDER, under its digest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from expunge.service.infra.settings import Settings, ensure_secrets
from expunge.workers.app import Worker
from expunge.workers.runtime import heartbeat
from tests.contract.exact import kinds
from tests.harness import databases
from tests.workers.worlds import World, open_world

PEPPER = "5a" * 32
"""the secret number of both installations: people draw their shard and their phase with it"""


@dataclass(frozen=True)
class Registration:
    """A model of the kind, under a method that may be exact."""

    kind: str
    method: str = "retrain"
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return a name that tells the registrations of a test apart, as a model's."""
        words = (self.kind, self.method, *map(str, (*self.options.values(), *self.policy.values())))
        return "".join(letter if letter.isalnum() else "-" for letter in "-".join(words)).strip("-").lower()


@contextmanager
def installation(folder: Path, template: Path, **settings: Any) -> Iterator[World]:
    """Open an installation in ``folder``, whose recipes lack nobody."""
    kinds.settled(folder / "recipes")
    chosen = Settings(
        home=folder / "home",
        database_url=databases.sqlite_databases(template)(folder),
        recipes=folder / "recipes",
        device="cpu",
        trial_seconds=0,
        sample_bytes=kinds.MOST,
        **settings,
    )
    ensure_secrets(chosen)
    chosen.pepper_file.write_text(PEPPER)
    world = open_world(chosen)
    yield world
    world.storage.close()


def registered(world: World, registration: Registration, worker: Worker) -> str:
    """Register the model, and let the worker publish its first version; return its id."""
    given = {"options": dict(registration.options), **registration.policy}
    model_id = world.register(registration.kind, registration.method, registration.name, **given)
    worker.work(model_id)
    model = world.model(model_id)
    assert model.status == "live", f"{registration}: {model.reason}"
    return model_id


def published(world: World, model_id: str) -> bytes:
    """Return the file of the model's current version."""
    return world.storage.store.read(world.head(model_id).checkpoint)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    heartbeat.sleep = lambda _: None
    template = databases.sqlite_template(folder)
    for place, (absent, registrations) in enumerate(json.load(sys.stdin)):
        with installation(folder / str(place), template) as world:
            kinds.leave_out(world.settings.recipes, absent)
            worker = Worker(world.process, world.pulse())
            for registration in map(_registration, registrations):
                data = published(world, registered(world, registration, worker))
                (folder / f"{place}-{registration.name}").write_bytes(data)


def without(folder: Path, orders: Iterable[tuple[Iterable[str], Iterable[Registration]]]) -> list[dict[str, bytes]]:
    """Return, for each order, what registrations without these people publish, by name: made in a fresh process."""
    folder.mkdir()
    asked = [[sorted(absent), [asdict(each) for each in registrations]] for absent, registrations in orders]
    subprocess.run(
        [sys.executable, "-m", __spec__.name, str(folder)],
        input=json.dumps(asked),
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"},
    )
    return [
        {each.name: (folder / f"{place}-{each.name}").read_bytes() for each in map(_registration, registrations)}
        for place, (_, registrations) in enumerate(asked)
    ]


def _registration(record: Mapping[str, Any]) -> Registration:
    return Registration(**record)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
