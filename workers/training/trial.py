"""The trial of a training with the recipe's own code: before it trains the model, it is tried on a few samples.

Each run is made as every exact training is, in a fresh process (workers/runtime/fresh). It must give the same
result where the samples that it is not handed have other values, and where it shares a folder with an earlier training
on other people; and another result for other people. What breaks these rules is refused. Where two runs on the same
samples differ, the results cannot be compared: that is reported, and the certificate says so.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from expunge.service.infra.settings import Settings
from expunge.service.infra.time import time_bucket
from expunge.workers.runtime.drain import look_on
from expunge.workers.runtime.fresh import Doubtful, FreshProcesses, Lost, Unloadable, temporary_folder
from expunge.workers.runtime.model import OpenModel
from expunge.workers.storage.manifest import SampleIndex
from expunge.workers.training.first_difference import first_difference
from expunge.workers.training.shortened import shortened_copy
from unlearning.accounting.certificate import DIFFERED
from unlearning.columns import Column
from unlearning.model.fit import Phase
from unlearning.model.parts import samples_read
from unlearning.model.training import Whole
from unlearning.model.user_code.own_training import WHOLE, Fitted
from unlearning.types import Examples, Refused, Tensors

PEOPLE, EACH, SHARE = 8, 32, 0.1
"""the first trial: so many people, at most so many samples of each, and the share of passes that ``late`` ends with"""
CONFINED = (
    "The training ran in a fresh process on a few people's samples. It was not handed the service's secrets. As far as "
    "Python's audit events show, it reached for no network, started no program and opened no file of the service."
)
NO_NETWORK = (
    "The kernel had given that process a network namespace without a network, and had hidden from it /run, /tmp, /var, "
    "the memory that processes share, and the Unix sockets that were in use elsewhere."
)
SEALED = "The kernel let that process write to its temporary folder alone, which is thrown away."
OVERWRITTEN = (
    "In one run the recipe's other samples were overwritten with other values, and so was what shares their memory: "
    "the result was the same. Other numbers that train, the loss and augment refer to by name are listed under parts. "
    "What cannot be seen: single numbers, texts, what only a library's object leads to, and files that C code opens by "
    "itself."
)
READERS, UNNAMED = " and ", "No name in its code leads to them."
SHARED_FOLDER = (
    "One run shared its folder with an earlier run on other people's samples, each in its own process: the result "
    "was the same."
)
OTHERS = "The samples of other people gave other weights."
SHORTER = (
    "In one run the tables in the recipe's folder that name people lacked every tenth person: the result was the same."
)
NOT_REPEATABLE = (
    f"{DIFFERED}, with deterministic algorithms and the same seeds. So it was "
    "not compared whether the training reads other samples, continues from what an earlier one left, or ignores its "
    "samples. That it uses nothing else is the operator's word."
)


@dataclass(frozen=True)
class Trial:
    """What was tried of a training, and what could not be, in sentences."""

    seconds: float = 0.0
    tried: tuple[str, ...] = ()
    not_tried: tuple[str, ...] = ()
    operators_word: bool = True
    """that the training uses its samples alone was not shown by any comparison"""
    differs_at: str = ""
    """where two runs on the same samples first differ; empty where they do not"""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what a certificate says of it."""
        return (*self.tried, *(f"Not tried: {each}" for each in self.not_tried))

    def report(self) -> dict[str, Any]:
        """Return the part of the registration's report that shows it."""
        seconds = time_bucket(self.seconds)
        return {"trial": {"seconds": seconds, "tried": [*self.tried], "not_tried": [*self.not_tried]}}


def tried(settings: Settings, bench: OpenModel, kept: SampleIndex) -> Trial:
    """Try the recipe's training on some of the ``kept`` samples.

    A training that fails on a few samples gets a second chance on half of all samples: only then it is refused.

    Raises:
        Refused: it did something that a training may not do, or raised, or did not end in time.
    """
    started = time.monotonic()
    if settings.trial_seconds == 0:
        return Trial(not_tried=("EXPUNGE_TRIAL_SECONDS is 0.",))
    if bench.fresh is None:
        return Trial(not_tried=("The service does not run on Linux.",))
    holders = list(dict.fromkeys(kept.holders))
    if len(holders) < 2:
        return Trial(not_tried=("There is one person alone, and no other to compare with.",))
    step = max(2, len(holders) // PEOPLE)
    few = [_samples(kept, holders[first::step][:PEOPLE], EACH) for first in (0, 1)]
    half = [_samples(kept, holders[first::2], len(kept)) for first in (0, 1)]
    runs = Runs(bench, bench.fresh, kept, started + settings.trial_seconds, SHARE)
    try:
        try:
            found = runs.findings(*few)
        except Doubtful:
            found = replace(runs, share=1.0).findings(*half)
    except (Unloadable, Lost) as error:
        found = Trial(not_tried=(f"No process could be made for it. {error}",))
    return replace(found, seconds=time.monotonic() - started)


def _samples(kept: SampleIndex, people: Sequence[str], each: int) -> Tensor:
    """Return the places of the first samples of these people among ``kept``."""
    left = dict.fromkeys(people, each)
    places = []
    for place, holder in enumerate(kept.holders):
        if left.get(holder, 0) > 0:
            left[holder] -= 1
            places.append(place)
    return torch.tensor(places, dtype=torch.int64)


@dataclass(frozen=True)
class Runs:
    """The runs of a trial, which end before ``deadline`` (``time.monotonic``)."""

    bench: OpenModel
    fresh: FreshProcesses
    kept: SampleIndex
    deadline: float
    share: float

    def findings(self, some: Tensor, others: Tensor) -> Trial:
        """Make the runs, compare them, and return what was found.

        Raises Refused, Doubtful, Unloadable, Lost.
        """
        with temporary_folder() as shared:
            other, _ = self._run(others, shared)
            after, seen = self._run(some, shared)
        without, verdict = self._run(some, overwrite=True)
        if other["weights"] == without["weights"]:
            raise Doubtful(
                f"The training gives the same weights for {len(some)} samples of some people and {len(others)} of "
                "others.",
                "Train run.model on run.inputs and run.targets, in place.",
            )
        if after != without:
            left, again = self._fitted(some), self._fitted(some)
            one = _digests(left)
            if one != _digests(again):
                problem = self.bench.problem
                place = first_difference(left, again, problem.layout, of_bytes=problem.artefact is not None)
                return Trial(tried=_confined(seen), not_tried=(NOT_REPEATABLE, *_read(seen)), differs_at=place)
            if without != one:
                read = samples_read(self.bench.recipe)
                raise Refused(
                    "The training reads samples that it is not handed: their values were changed, and the result was "
                    f"another. {f'Its code refers to {READERS.join(read)}.' if read else UNNAMED}",
                    "Use run.inputs and run.targets alone, and compute every number from them.",
                )
            raise Refused(
                "The training continues from what an earlier one left: after a training on other samples in the same "
                "folder, it gave another result.",
                "Start from run.state alone, and read no file that the training writes.",
            )
        reason = verdict["untouched"]
        tables = self._with_shorter_tables(some, without)
        sentences = (*_confined(seen), *(() if reason else (OVERWRITTEN,)), *tables, SHARED_FOLDER, OTHERS)
        reasons = (f"The samples that the training is not handed kept their values. {reason}",) if reason else ()
        return Trial(tried=sentences, not_tried=(*reasons, *_read(seen)), operators_word=False)

    def _with_shorter_tables(self, places: Tensor, usual: dict[str, str]) -> tuple[str, ...]:
        """Train on these samples where the recipe finds tables without every tenth person; return what is to be said.

        No sentence where no table in its folder names people, where the recipe needs other files than those, or where
        the model's shape follows the tables.
        """
        found, tables = self._elsewhere(places, parallel=True)
        if found is None or found["shapes"] != usual["shapes"]:
            return ()
        # an array of a table's length may hold other things than its rows: then it must stay whole
        if found != usual and self._elsewhere(places, parallel=False)[0] != usual:
            raise Refused(
                f"The training reads rows that it is not handed, of {', '.join(tables[:3])}: without every tenth "
                "person there, it gave another result on the same samples.",
                "Compute every number inside train, from run.inputs and run.targets. A table that train may read, as "
                "it is of no person, belongs outside the recipe's folder.",
            )
        return (SHORTER,)

    def _elsewhere(self, places: Tensor, *, parallel: bool) -> tuple[dict[str, str] | None, list[str]]:
        """Train where the tables are shorter; return what it left, None where it does not run there, and the tables."""
        given = self.fresh.recipe
        recipes, recipe = given.settings.recipes, self.bench.recipe
        with shortened_copy(recipes, given.tenant_id, given.name, recipe, parallel=parallel) as (root, tables):
            if not tables:
                return None, tables
            elsewhere = replace(given, settings=given.settings.model_copy(update={"recipes": root}))
            try:
                return replace(self, fresh=replace(self.fresh, recipe=elsewhere))._run(places)[0], tables
            except (Refused, Lost):
                return None, tables

    def _run(
        self, places: Tensor, folder: Path | None = None, *, overwrite: bool = False
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Train on these of the kept samples; return digests of what the training left, and the verdict."""
        if folder is None:
            with temporary_folder() as own:
                return self._run(places, own, overwrite=overwrite)
        fitted, verdict = self._trained(places, folder, overwrite=overwrite)
        return _digests(fitted), verdict

    def _fitted(self, places: Tensor) -> Fitted:
        """Train on these of the kept samples in a new folder; return what the training left."""
        with temporary_folder() as own:
            return self._trained(places, own, overwrite=False)[0]

    def _trained(self, places: Tensor, folder: Path, *, overwrite: bool) -> tuple[Fitted, dict[str, Any]]:
        chosen, device = self.kept.take(places), self.bench.problem.device
        inputs, targets = next(iter(self.bench.recipe.samples.rows.read([chosen.at])))
        rows = Tensors(inputs.to(device), targets.to(device))
        handed = Examples(torch.arange(len(places), device=device), rows, Column.of(chosen.holders), chosen.subjects)
        try:
            fitted, verdict = self.fresh.carried_out(
                self._part(),
                handed,
                None,
                look_on,
                folder,
                kept=chosen.at.tolist() if overwrite else None,
                seconds=max(0.001, self.deadline - time.monotonic()),
            )
        except TimeoutError:
            most = self.fresh.recipe.settings.trial_seconds
            raise Refused(
                f"The training did not end within {most:g} seconds, on {len(places)} samples.",
                "Make it end, or follow run.share; or raise EXPUNGE_TRIAL_SECONDS.",
            ) from None
        return fitted, verdict

    def _part(self) -> Phase | Whole:
        """Return what is tried: a short training; one that ends in a minimiser is made whole."""
        return Phase(WHOLE, self.share) if self.bench.problem.training.converge is None else Whole()


def _confined(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    said = ((NO_NETWORK, verdict["no_network"]), (SEALED, verdict["sealed"]))
    return (CONFINED, *(sentence for sentence, holds in said if holds))


def _read(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is to be said where the training read files: their content was not overwritten."""
    count = verdict["files"]
    counted, them = ("1 file", "it") if count == 1 else (f"{count} files", "them")
    return (f"The training read {counted}, and what is in {them} was not changed.",) if count else ()


def _digests(fitted: Fitted) -> dict[str, str]:
    """Return digests: of the weights, of everything that the training left, and of its shapes."""
    weights = hashlib.sha256(_bytes(fitted.weights))
    whole = weights.copy()
    whole.update(json.dumps(fitted.facts).encode())
    shapes = hashlib.sha256(str(tuple(fitted.weights.shape)).encode())
    for name in sorted(fitted.tensors):
        shape = f"{name} {fitted.tensors[name].dtype} {tuple(fitted.tensors[name].shape)}".encode()
        shapes.update(shape)
        whole.update(shape)
        whole.update(_bytes(fitted.tensors[name]))
    return {"weights": weights.hexdigest(), "whole": whole.hexdigest(), "shapes": shapes.hexdigest()}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
