"""A recipe with rows: what it declares, where its sources lie, and who is in them.

The worker imports no such recipe. What leaves a source as one counts as a sample: all rows of a person, or a row that
the source names by its id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.service.infra.pseudonyms import Pepper, digest
from expunge.service.infra.settings import SECRETS, Settings
from expunge.service.infra.tenants import DEFAULT_TENANT, recipes_of
from expunge.workers.runtime import recipes
from expunge.workers.runtime.world import Code
from expunge.workers.runtime.worlds import SourceReader, declare, read_sources
from unlearning.accounting.policy import Granularity
from unlearning.artefact import Artefact
from unlearning.recipe import Recipe, Samples
from unlearning.types import Refused

MOST_GONE = 0.1
"""of the retained; an update is blocked where the sources lack more, because nobody looked at that"""
Unit = tuple[str, int]
DIGEST = 32


@dataclass(frozen=True)
class RowsRecipe:
    """What a recipe with rows declares.

    Args:
        code: what a world imports. digest: of the code. settings: the digest of what it declares.
        sources: by parameter, as ``source_to_json`` gives them. public: path and SHA-256 by parameter.
        run: the parameter, if any, that gets the part's ``TrainingRun``.
        merges: whether its module makes one file of the members of ``shards``.
        roots: the folder beneath which each source and public file lies, by parameter.
        closed: folders and files that no world of it sees.
        maps: the functions that are mapped over each source, with the public files that each takes.
    """

    code: Code = field(repr=False)
    digest: str
    settings: str
    sources: Mapping[str, Any]
    public: Mapping[str, tuple[str, str]]
    run: Sequence[str]
    merges: bool
    roots: Mapping[str, Path]
    closed: Sequence[str] = field(repr=False)
    maps: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    def order(self, start: Sequence[tuple[str, int]] | None = None) -> dict[str, Any]:
        """Return what a part is told that calls the recipe. ``start``: name and size of each file it begins from."""
        return {
            "sources": [*self.sources],
            "public": {name: str(self.roots[name] / path) for name, (path, _) in self.public.items()},
            "start": start,
            "run": self.run,
            "maps": self.maps,
        }


@dataclass(frozen=True)
class SourceUnits:
    """Who is in the sources of a recipe. What leaves as one, a unit, is named by its source and its number there."""

    reader: SourceReader = field(repr=False)
    granularity: Granularity

    @cached_property
    def by_digest(self) -> dict[bytes, Unit]:
        """The units that are trained on, in order, by their digest."""
        return {
            survey.digests[number].tobytes(): (source, number)
            for source, survey in self.reader.surveys.items()
            for number in np.flatnonzero(~survey.aside).tolist()
        }

    @cached_property
    def aside(self) -> list[Unit]:
        """The units that are kept apart."""
        surveys = self.reader.surveys.items()
        return [(source, number) for source, survey in surveys for number in np.flatnonzero(survey.aside).tolist()]

    def at(self, samples: Samples, places: Tensor) -> list[Unit]:
        """Return the units at these places (m,) of ``samples``, which are these units'."""
        if not isinstance(samples.inputs, Tensor):
            raise TypeError("units are held in memory")
        return [self.by_digest[digest.tobytes()] for digest in samples.inputs[places].numpy()]

    def people(self, unit: Unit) -> tuple[str, ...]:
        """Return the people of a unit, as requests name them."""
        source, number = unit
        return self.reader.surveys[source].people[number]

    def samples(self) -> Samples:
        """Return the units that are trained on as samples (n); their inputs (n, 32) are their digests.

        Raises Refused where there is none, or one has no name and the policy forgets single samples.
        """
        if not self.by_digest:
            raise Refused("The sources hold rows of nobody who is trained on.", "Give rows, or a smaller aside=.")
        inputs = torch.frombuffer(bytearray(b"".join(self.by_digest)), dtype=torch.uint8).reshape(-1, DIGEST)
        units = self.by_digest.values()
        targets = torch.zeros(len(inputs), dtype=torch.int64)
        return Samples([*map(self._name, units)], [*map(self.people, units)], inputs, targets)

    def _name(self, unit: Unit) -> str:
        """Return the id of a unit: that of its row, or else its people; of several sources with the source's name."""
        source, number = unit
        id = self.reader.surveys[source].ids[number]
        if self.granularity is Granularity.SAMPLE and not id:
            what = f"The policy forgets single samples, and the source {source!r} does not name its rows."
            raise Refused(what, "Give the source id= (and no at=), or let the policy forget people.")
        place = "" if len(self.reader.surveys) == 1 else f"{source}/"
        return f"{place}{id or json.dumps(self.people(unit))}"


class RecipeOfUnits(Recipe):
    """A recipe whose samples are digests: who is kept apart is known by name, and no holdout row is held."""

    def _require_holdout(self) -> None:
        pass


def recipe_of(rows_recipe: RowsRecipe, units: SourceUnits) -> Recipe:
    """Return the recipe that the exact methods work on. Its training is made in worlds (``Fresh``)."""
    nobody = torch.zeros(0, 32, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    return RecipeOfUnits(
        model=Artefact(_of_its_world, merge=_of_its_world, continues=bool(rows_recipe.run)),
        samples=units.samples(),
        holdout=nobody,
        loss=_of_its_world,
        train=_of_its_world,
        holdout_subjects=[units.people(unit) for unit in units.aside],
        metric=score,
    )


def score(_outputs: Tensor, _targets: Tensor) -> float:
    """Name the measure in reports; the world that trains measures."""
    raise RuntimeError("the score of a recipe with rows is measured in its world")


def _of_its_world(*_: object) -> Any:
    raise RuntimeError("a recipe with rows is trained, merged and asked in its world alone")


def declared(settings: Settings, tenant_id: str, name: str) -> RowsRecipe:
    """Return what a recipe with rows declares: its module is imported behind walls, without data.

    Raises Refused, Lost, TimeoutError.
    """
    root = recipes_of(settings.recipes, tenant_id)
    path = recipes.find(root, name)
    secrets = (getattr(settings, secret) for secret in SECRETS)
    service = tuple(str(place.resolve()) for place in (*settings.folders, *secrets))
    closed = (*service, *(str(place.resolve()) for place in (settings.recipes, settings.data)))
    digest, code = recipes.digest_of(path), recipes.code_of(path)
    facts = _facts(code.module, tuple(sorted(code.files.items())), closed)
    files = {parameter: paths_of(record) for parameter, record in facts["sources"].items()}
    files |= {parameter: [path] for parameter, (path, _) in facts["public"].items()}
    folders = [path.parent, settings.data / tenant_id]
    return RowsRecipe(
        code=code,
        digest=digest,
        settings=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
        sources=facts["sources"],
        public={name: (path, sha256) for name, (path, sha256) in facts["public"].items()},
        run=facts["run"],
        merges=facts["merges"],
        roots={parameter: root_of(folders, paths, service) for parameter, paths in files.items() if paths},
        closed=closed,
        maps=facts.get("maps", {}),
    )


@lru_cache(maxsize=16)
def _facts(module: str, files: tuple[tuple[str, bytes], ...], closed: tuple[str, ...]) -> dict[str, Any]:
    return declare(Code(module, dict(files)), closed)


def paths_of(source: Mapping[str, Any]) -> list[str]:
    """Return every path that a source names, beneath one root; a query names none."""
    named = [source[field] for field in ("path", "index", "names") if field in source]
    return [*named, *source.get("files", {}).values(), *([source["person"]["path"]] if source["via"] else [])]


def root_of(folders: Sequence[Path], paths: Sequence[str], closed: Sequence[str]) -> Path:
    """Return the first of the folders that has the first path; the first of all where none has it.

    Raises Refused where a path leads to what is the service's or another tenant's.
    """
    root = next((folder for folder in folders if (folder / paths[0]).exists()), folders[0])
    for path in paths:
        real = (root / path).resolve()
        # the recipes of a tenant but the first lie beneath the first's, in a folder that begins with @
        inside = any(real.is_relative_to(place) or Path(place).is_relative_to(real) for place in closed)
        if path.startswith("@") or inside:
            what = f"The path {path!r} leads to files of the service or of another tenant."
            raise Refused(what, "Put the data elsewhere.")
    return root


def salt_of(pepper: Pepper, tenant_id: str) -> bytes:
    """Return what decides which people are kept apart: the same for all models of a tenant."""
    return bytes.fromhex(digest(pepper, "aside", tenant_id))


def survey(
    rows_recipe: RowsRecipe,
    settings: Settings,
    tenant_id: str,
    granularity: Granularity,
    *,
    salt: bytes,
    until: int | None = None,
) -> SourceUnits:
    """Open the sources and say who is in them, within a block of ``readers``.

    Args:
        salt: as ``salt_of`` gives it.
        until: the moment (microseconds) when the generation began; rows that came later, by their ``at=``, wait.

    Raises Refused, Lost, MemoryError.
    """
    shares = {record["aside"] for record in rows_recipe.sources.values()}
    if len(shares) > 1:
        what = f"The sources keep different shares of the people apart: {', '.join(map(str, sorted(shares)))}."
        raise Refused(what, "Give all of them the same aside=.")
    reader = read_sources(
        rows_recipe.sources,
        {name: rows_recipe.roots.get(name, Path("/")) for name in rows_recipe.sources},
        databases=databases_of(settings, tenant_id),
        salt=salt,
        until=None if until is None else datetime.fromtimestamp(until / 1e6, UTC),
        most=settings.sample_bytes,
    )
    return SourceUnits(reader, granularity)


def databases_of(settings: Settings, tenant_id: str) -> dict[str, str]:
    """Return the addresses that a tenant's recipes may name: of a tenant but the first they are set as TENANT/NAME."""
    own = "" if tenant_id == DEFAULT_TENANT else f"{tenant_id}/"
    addresses = settings.source_addresses
    names = {name.removeprefix(own): name for name in addresses if name.startswith(own)}
    return {name: addresses[whole] for name, whole in names.items() if "/" not in name}
