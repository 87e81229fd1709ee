"""The trial of a recipe's own training: before it trains the model, it is tried on a few people's samples.

``train`` runs in a fresh child process without the service's secrets, its files and the network. It must give the same
result where the samples that it is not handed have other values, and where it was called before on other samples; and
another result for other people. What breaks these rules is refused. Where two runs on the same samples differ, the
results cannot be compared: that is reported, and the certificate says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from service.infra.settings import SECRETS, Settings
from service.infra.tenants import recipes_of
from service.infra.time import bucket
from unlearning.types import Refused
from workers.runtime.jobs import Preparation
from workers.runtime.model import Bench
from workers.runtime.recipe_messages import ADVICE, hint_of
from workers.storage.manifest import Digests
from workers.training.trial_child import Experiment

PEOPLE, EACH, SHARE = 8, 32, 0.1
"""the first trial: so many people, at most so many samples of each, and the share of passes that ``late`` ends with"""
FOLDER = "expunge-trial-"
YOUNG_SECONDS = 60
"""a folder that is younger may be that of another worker, which has not locked it yet"""
ROOT = Path(__file__).resolve().parents[2]
CONFINED = (
    "train ran in a child process on a few people's samples, without the service's secrets. As far as Python's audit "
    "events show, it reached for no network, started no program and opened no file of the service."
)
NO_NETWORK = "The kernel had given that process a network namespace without a network."
OVERWRITTEN = (
    "The recipe's other samples were overwritten with other values in a second child process: the result was the same, "
    "byte for byte."
)
CALLED_AGAIN = (
    "Called again in the same process on the same samples, after it was called on others, train gave the same result, "
    "byte for byte."
)
OTHERS = "The samples of other people gave other weights."
NOT_REPEATABLE = (
    "Two runs on the same samples gave different results. So it was not compared whether train reads other samples, "
    "keeps something between calls, or ignores its samples."
)


@dataclass(frozen=True)
class Trial:
    """What was tried of a training, and what could not be, in sentences."""

    seconds: float = 0.0
    tried: tuple[str, ...] = ()
    not_tried: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what a certificate says of it."""
        return (*self.tried, *(f"Not tried: {each}" for each in self.not_tried))

    def report(self) -> dict[str, Any]:
        """Return the part of the registration's report that shows it."""
        seconds = bucket(self.seconds)
        return {"trial": {"seconds": seconds, "tried": [*self.tried], "not_tried": [*self.not_tried]}}


class Doubtful(Refused):
    """A refusal that may come from too few samples: batches that are dropped, a class that is missing."""


class Unloadable(Exception):
    """The recipe could not be run in a child process, so nothing was tried."""


def tried(settings: Settings, job: Preparation, bench: Bench, kept: Digests) -> Trial:
    """Try the recipe's ``train`` on some of the ``kept`` samples.

    A training that fails on a few samples gets a second chance on half of everybody's: only then it is refused.

    Raises:
        Refused: it did something that a training may not do, or raised, or did not end in time.
    """
    started = time.monotonic()
    if settings.trial_seconds == 0:
        return Trial(not_tried=("EXPUNGE_TRIAL_SECONDS is 0.",))
    if sys.platform != "linux":  # elsewhere a fork of a process with torch in it may crash
        return Trial(not_tried=("The service does not run on Linux.",))
    holders = list(dict.fromkeys(kept.holders))
    if len(holders) < 2:
        return Trial(not_tried=("There is one person alone, and no other to compare with.",))
    step = max(2, len(holders) // PEOPLE)
    few = [_samples(kept, holders[first::step][:PEOPLE], EACH) for first in (0, 1)]
    half = [_samples(kept, holders[first::2], len(kept)) for first in (0, 1)]
    with _folder() as folder:
        experiment = _experiment(settings, job, bench, folder)
        try:
            try:
                found = _findings(settings, experiment, *few)
            except Doubtful:
                found = _findings(settings, replace(experiment, share=1.0), *half)
        except Unloadable as error:
            found = Trial(not_tried=(f"The recipe could not be run in a child process. {error}",))
    return replace(found, seconds=time.monotonic() - started)


def _samples(kept: Digests, people: Sequence[str], each: int) -> list[int]:
    """Return the indexes in the recipe of the first samples of these people."""
    left = dict.fromkeys(people, each)
    indexes = []
    for holder, index in zip(kept.holders, kept.at.tolist(), strict=True):
        if left.get(holder, 0) > 0:
            left[holder] -= 1
            indexes.append(index)
    return indexes


def _experiment(settings: Settings, job: Preparation, bench: Bench, folder: Path) -> Experiment:
    secrets = (getattr(settings, name) for name in SECRETS)
    return Experiment(
        recipes=str(recipes_of(settings.recipes, job.tenant_id)),
        name=job.recipe,
        digest=bench.digest,
        device=str(bench.problem.device),
        folder=str(folder),
        closed=tuple(str(each.resolve()) for each in (*settings.folders, *secrets)),
        share=SHARE,
        kernel=True,
        runs=(),
    )


def _findings(settings: Settings, experiment: Experiment, some: Sequence[int], others: Sequence[int]) -> Trial:
    """Make the runs, compare them, and return what was found. Raises Refused, Doubtful, Unloadable."""
    again = {"calls": [others, some], "overwrite": False}
    elsewhere = {"calls": [some], "overwrite": True}
    first, second = _run(settings, experiment, again, elsewhere)
    (without,) = second["prints"]
    other, after = first["prints"]
    if other["weights"] == without["weights"]:
        raise Doubtful(
            f"train gives the same weights for {len(some)} samples of some people and {len(others)} of others.",
            "Train run.model on run.inputs and run.targets, in place.",
        )
    if after != without:
        fresh = {"calls": [some], "overwrite": False}
        (one,), (two,) = (each["prints"] for each in _run(settings, experiment, fresh, fresh))
        if one != two:
            return Trial(tried=_confined(first), not_tried=(NOT_REPEATABLE, *_read(first)))
        if without != one:
            raise Refused(
                "train reads samples that it is not handed: their values were changed, and the result was another.",
                "Use run.inputs and run.targets alone, and compute every number from them.",
            )
        raise Refused(
            "train keeps something between calls: after a call on other samples, it gave another result.",
            "Make everything that it changes inside it: no global variable, no cache, no counter.",
        )
    untouched = second["untouched"]
    sentences = (*_confined(first), *((OVERWRITTEN,) if untouched is None else ()), CALLED_AGAIN, OTHERS)
    reasons = () if untouched is None else (f"The samples that train is not handed kept their values: {untouched}",)
    return Trial(tried=sentences, not_tried=(*reasons, *_read(first)))


def _confined(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    return (CONFINED, NO_NETWORK) if verdict["alone"] else (CONFINED,)


def _read(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is to be said where ``train`` read files: nobody overwrote what is in them."""
    count = verdict["files"]
    counted = "1 file" if count == 1 else f"{count} files"
    return (f"train read {counted}, and what is in them was not changed.",) if count else ()


def _run(settings: Settings, experiment: Experiment, *runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make these runs and return their verdicts. A recipe that needs the network to load gets it, until ``train``.

    Raises:
        Refused: a run did what it may not, or did not end in time.
        Doubtful: a run raised, or left what is no model.
        Unloadable: the recipe does not load in a child process.
    """
    verdicts = _child(settings, replace(experiment, runs=runs))
    if any("unloadable" in each for each in verdicts):
        verdicts = _child(settings, replace(experiment, runs=runs, kernel=False))
    for verdict in verdicts:
        _judge(verdict)
    return verdicts


def _judge(verdict: Mapping[str, Any]) -> None:
    """Raise what a verdict without results means."""
    match verdict:
        case {"attempt": [what, place, value]}:
            raise Refused(f"train {what}{place}; it may depend on run alone.", hint_of(PermissionError(value)))
        case {"refused": [what, hint]}:
            raise Doubtful(what, hint)
        case {"ended": status} if status == -signal.SIGKILL:
            raise Unloadable("The child process was killed: there may have been too little memory.")
        case {"ended": status}:
            raise Doubtful(f"train ended its process (status {status}).", ADVICE)
        case {"unloadable": why}:
            raise Unloadable(why)
        case {"broken": why}:
            raise RuntimeError(f"the trial itself failed:\n{why}")


def _child(settings: Settings, experiment: Experiment) -> list[dict[str, Any]]:
    """Start a child process for the experiment and wait for its answer. Raises Refused once its time is over."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    child = subprocess.Popen(
        [sys.executable, "-m", "workers.training.trial_child"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limit = settings.trial_seconds
    try:
        answer, _ = child.communicate(json.dumps(asdict(experiment)).encode(), timeout=limit)
    except subprocess.TimeoutExpired:
        count = len(experiment.runs[0]["calls"][0])
        raise Refused(
            f"train did not end within {limit:g} seconds, on {count} samples.",
            "Make it end, or follow run.share; or raise EXPUNGE_TRIAL_SECONDS.",
        ) from None
    finally:
        with suppress(ProcessLookupError):  # what train started and left behind
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"the trial's child process ended with {child.returncode}")
    verdicts: list[dict[str, Any]] = json.loads(answer)
    return verdicts


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a temporary folder for a trial, and remove those that trials of dead workers left: they may hold samples."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with suppress(OSError), _locked(left):
            if time.time() - left.stat().st_mtime > YOUNG_SECONDS:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True) as name, _locked(Path(name)):
        yield Path(name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, which ends with this process. Raises OSError where another process holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
