"""The samples that an update reads: those that the last one left in this process, or the recipe's, compared.

Where the recipe has them in their order, digests of whole groups show that they are unchanged. Otherwise each sample is
found by its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import recipes_of
from expunge.service.models import FORGOTTEN, MEMBERSHIPS, marks_changed, memberships_changed
from expunge.service.queue import Blocked, Deletions, forgotten
from expunge.service.requests import Reason
from expunge.workers.runtime import recipes
from expunge.workers.runtime.device import device_of
from expunge.workers.runtime.model import Left, OpenModel
from expunge.workers.storage import Storage, manifest
from unlearning.accounting.policy import Granularity
from unlearning.recipe import Samples
from unlearning.types import Examples, Tensors


@dataclass(frozen=True)
class UpdateSamples:
    """What an update has to read: which positions it forgets (``going``), and the samples that its method needs."""

    claim: Deletions
    storage: Storage
    settings: Settings
    going: Sequence[int]
    wants_forgotten: bool
    wants_retained: bool

    def read(
        self, bench: OpenModel, left: Left, count: int, given: Samples | None
    ) -> tuple[Examples | None, manifest.FoundSamples | None] | Blocked:
        """Return the forgotten and the retained samples; None where they are not needed.

        ``count`` is that of the generation; ``given`` are the recipe's samples, where it was run already. Raises
        Refused.
        """
        if not (self.wants_forgotten or self.wants_retained):
            return None, None
        found = left.samples
        if found is None:
            samples = given or recipe_samples(self.claim, bench, self.settings)
            if isinstance(samples, Blocked):
                return samples
            with self.storage.database.read() as session:
                if marks_changed(session, self.storage.pepper, self.claim.generation_id):
                    return Blocked(Reason.TABLES_DIFFER, {"table": FORGOTTEN})
            found = self.unchanged(samples, left.digests, count)
            if found is None:
                return self.one_by_one(samples)
        theirs = found.examples.only(torch.tensor(self.going, dtype=torch.int64)) if self.wants_forgotten else None
        return theirs, found.without(self.going) if self.wants_retained else None

    def unchanged(self, samples: Samples, digests: Mapping[int, str], count: int) -> manifest.FoundSamples | None:
        """Return the current version's samples, where the recipe has all of them unchanged and in their order.

        It may have others, of people outside the model. It may lack ``going``, unless they are wanted: then the
        samples of their groups are compared one by one. None: every sample must be looked for. ``digests`` are those
        of the version.
        """
        if not digests:
            return None
        claim, pepper, granularity = self.claim, self.storage.pepper, self.claim.policy.granularity
        with self.storage.database.read() as session:
            gone = forgotten(session, claim.generation_id)
            people = None if len(samples) == count else manifest.people(session, claim.generation_id)
        there = ~torch.isin(torch.arange(count), torch.tensor(list(gone), dtype=torch.int64))
        subjects = manifest.subjects_of(pepper, claim.tenant_id, samples)
        rows = there.clone() if people is None else subjects.where(people.issuperset)
        lacking = int(there.sum()) - int(rows.sum())
        if lacking == len(self.going) and not self.wants_forgotten:
            there[list(self.going)] = False
        elif lacking:
            return None
        index, positions = (each.nonzero().squeeze(1) for each in (rows, there))
        named = manifest.named(pepper, claim.tenant_id, samples) if granularity is Granularity.SAMPLE else None
        owners = manifest.holders(pepper, subjects, named).take(index), subjects.take(index)
        device = device_of(self.settings.device)
        held = samples.held(self.settings.sample_bytes, device)
        if not isinstance(held, Tensors):  # it was small enough when the version was published
            return None
        examples = Examples(positions.to(device), held, *owners, index).compact()
        found = manifest.FoundSamples.of(samples.names.take(index), examples)
        other = {group for group, digest in found.digests.items() if digests.get(group) != digest}
        if not other:
            return found
        if not lacking or not other <= {position // manifest.GROUP for position in self.going}:
            return None
        with self.storage.database.read() as session:
            before = manifest.places(session, claim.generation_id, other)
        before = before.take(torch.isin(before.at, positions))
        theirs = samples.take(index[torch.isin(positions // manifest.GROUP, torch.tensor(sorted(other)))])
        now = manifest.entries(pepper, claim.tenant_id, theirs, granularity)
        return found if now.agrees(before) else None

    def one_by_one(self, samples: Samples) -> tuple[Examples | None, manifest.FoundSamples | None] | Blocked:
        """Find the forgotten and the retained samples in the recipe's, each by its digests."""
        claim, storage, going = self.claim, self.storage, self.going
        with storage.database.snapshot() as session:
            if memberships_changed(session, storage.pepper, claim.generation_id):
                return Blocked(Reason.TABLES_DIFFER, {"table": MEMBERSHIPS})
            places = manifest.places(session, claim.generation_id)
            gone = forgotten(session, claim.generation_id)
        present, device = manifest.given(storage.pepper, claim.tenant_id, samples), device_of(self.settings.device)
        found = partial(manifest.found_again, samples, present, places, most=self.settings.sample_bytes)
        theirs = found(frozenset(places.at.tolist()).difference(going), device) if self.wants_forgotten else None
        if isinstance(theirs, manifest.Changed):
            return _lacking(theirs)
        retained = found(gone.union(going), device) if self.wants_retained else None
        if isinstance(retained, manifest.Changed):
            return _lacking(retained)
        return None if theirs is None else theirs.examples, retained


def _lacking(changed: manifest.Changed) -> Blocked:
    return Blocked(Reason.SAMPLES_CHANGED, {"lacking": changed.missing + changed.changed, **asdict(changed)})


def recipe_samples(claim: Deletions, bench: OpenModel, settings: Settings) -> Samples | Blocked:
    """Run the recipe for its samples. A setting that it computes from its data must be that of the opened model.

    Raises Refused.
    """
    loaded = recipes.load(recipes_of(settings.recipes, claim.tenant_id), claim.recipe)
    if (loaded.digest, loaded.settings) != (bench.digest, bench.settings):
        return other_recipe(claim, settings, loaded.digest != bench.digest)
    return loaded.recipe.samples


def other_recipe(claim: Deletions, settings: Settings, code: bool) -> Blocked:
    """Return that the recipe is not the registered one. ``code``: its file, or a module that it imports, differs."""
    file = recipes.find(recipes_of(settings.recipes, claim.tenant_id), claim.recipe).name
    return Blocked(Reason.RECIPE_CHANGED, {"file": file} if code else {})


def other_form(claim: Deletions, settings: Settings) -> Blocked:
    """Return that the recipe was rewritten as one with rows, and the model waits to be ported."""
    file = recipes.find(recipes_of(settings.recipes, claim.tenant_id), claim.recipe).name
    return Blocked(Reason.RECIPE_FORM, {"file": file})
