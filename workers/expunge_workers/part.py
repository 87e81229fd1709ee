"""The program that trains one part for an engine: ``python -m expunge_workers.part PLACE NAME``, with its key as input.

It is a worker without a queue, a database or a secret of the service: it reads the part's files, has the part trained
in a world of its own machine, and writes what that answered. Asked to stop by SIGTERM, it keeps a checkpoint and ends
with 75: it goes on from there when it is started again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from expunge_service.infra.stores import Damaged
from expunge_workers.runtime import drain
from expunge_workers.runtime.build import sealed
from expunge_workers.runtime.engine import ASK_SECONDS, DIFFERS, UNASKED_SECONDS, EngineDiffers
from expunge_workers.runtime.jobs import pack, unpack
from expunge_workers.runtime.kernel import die_with_parent
from expunge_workers.runtime.part_files import PartFiles
from expunge_workers.runtime.points import RESUMED, TakenPoints
from expunge_workers.runtime.world import Code
from expunge_workers.runtime.worlds import (
    Lost,
    PartOrder,
    PartOutcome,
    make_world,
    reply_of,
    require_walls_for,
    template,
)
from expunge_workers.storage.environment import Environment
from unlearning.accounting.world import Enclosure
from unlearning.rows import PublicFile, open_public
from unlearning.types import Progress, RecipeError

KEY_BYTES = 32
UNSEALED = 2
"""the exit status where the files are not there, or do not open under the key"""


def main(place: str, name: str, key: bytes) -> int:
    """Train the part, unless it was; return 0 once there is a verdict, 75 where it was asked to stop."""
    files = PartFiles.at(place, name, key)
    try:
        order = files.order()
        if files.verdict() is not None:
            return 0
    except (FileNotFoundError, Damaged) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return UNSEALED
    reply, data = dict[str, Any](), b""
    try:
        outcome = train(files, order)
        data = outcome.data
        reply = {"facts": {**outcome.facts}, "score": outcome.score, "cpu": outcome.cpu_seconds}
        reply |= {"seconds": outcome.seconds, "walls": outcome.walls.value}
    except drain.Drained:
        return os.EX_TEMPFAIL
    except Lost as error:  # it may pass: without a verdict the next attempt goes on from the checkpoint
        sys.stderr.write(f"{error}\n")
        return os.EX_SOFTWARE
    except EngineDiffers as error:
        reply = {DIFFERS: error.differences}
    except Exception as error:
        reply = reply_of(error)
    files.answer(reply, data)
    return 0


def train(files: PartFiles, order: Mapping[str, Any]) -> PartOutcome:
    """Have the part trained in a world, from its checkpoint on.

    Raises as a world of a worker; EngineDiffers; Drained.
    """
    words, threads = order["words"], order["threads"]
    _require_same(Environment.of(torch.device(words["device"]), threads=str(threads)), order["environment"])
    require_walls_for(words["processes"])
    public = [_public_file(path, sha256) for path, sha256 in order["public"]]
    code = Code(order["module"], {name: b64decode(text) for name, text in order["code"].items()})
    anew: tuple[dict[str, Any], bytes] = {"listing": [], "seconds": 0.0, "walls": template().probe.strength}, b""
    facts, point = (files.checkpoint() if order["may_resume"] else None) or anew
    begun, walls = time.perf_counter(), Enclosure.weakest([facts["walls"], template().probe.strength])

    def seconds() -> float:
        return float(facts["seconds"]) + time.perf_counter() - begun

    def keep(data: Sequence[bytes]) -> None:
        listing, packed = pack({f"{RESUMED}{rank}": part for rank, part in enumerate(data)})
        files.keep_checkpoint({"listing": listing, "seconds": seconds(), "walls": walls.value}, packed)

    with ExitStack() as stack:
        given = stack.enter_context(files.given(order["files"]))
        aside = None if order["aside"] is None else stack.enter_context(files.given(order["aside"]))
        points = TakenPoints(words["processes"], keep) if words["run"] else None
        if points is not None:
            stack.callback(points.close)
            resumed = unpack(facts["listing"], point).items()
            given |= points.files | {name: stack.enter_context(sealed(data)) for name, data in resumed}
        limits = {"opened": public, "closed": order["closed"], "threads": threads, "progress": _end_unasked(files)}
        world = stack.enter_context(make_world("train", code, 1, **limits))
        outcome = world(PartOrder(words, given, aside, order["seed"], points))
    return replace(outcome, seconds=seconds(), walls=walls)


def _require_same(here: Environment, workers: Mapping[str, Any]) -> None:
    """Raise EngineDiffers where this machine would give other bits than the worker's."""
    differences = here.differences(Environment.from_json(workers), recorded=False)
    if differences:
        raise EngineDiffers(differences)


def _public_file(path: str, sha256: str) -> str:
    """Return the path, where this machine has the file that the worker found there. Raises EngineDiffers."""
    try:
        return str(open_public(PublicFile(path, sha256), Path("/")))
    except RecipeError:
        raise EngineDiffers([f"the public file {Path(path).name}, now none or another"]) from None


def _end_unasked(files: PartFiles) -> Progress:
    """Return what asks this process to stop once no worker asks for its part any more."""
    looked = time.monotonic()

    def look(_: float) -> None:
        nonlocal looked
        if time.monotonic() - looked >= ASK_SECONDS:
            looked = time.monotonic()
            if files.unasked_seconds() >= UNASKED_SECONDS:
                drain.ask()

    return look


if __name__ == "__main__":
    die_with_parent()
    signal.signal(signal.SIGTERM, drain.ask)
    _, where, part = sys.argv
    sys.exit(main(where, part, sys.stdin.buffer.read(KEY_BYTES)))
