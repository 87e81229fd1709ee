"""A recipe with rows: what it declares, where its sources lie, and who is in them.

The worker imports no such recipe. What leaves a source as one counts as a sample: all rows of a person, or a row that
the source names by its id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge_service.infra.pseudonyms import Pepper, digest
from expunge_service.infra.settings import SECRETS, Settings
from expunge_service.infra.tenants import DEFAULT_TENANT, recipes_of
from expunge_workers.runtime import recipes
from expunge_workers.runtime.world import Code
from expunge_workers.runtime.worlds import SourceReader, declare, enter_with_readers, read_by_function, read_sources
from unlearning.accounting.policy import Granularity
from unlearning.artefact import Artefact
from unlearning.columns import Column, Texts
from unlearning.recipe import Recipe, Samples
from unlearning.rows import CHECKPOINT_SECONDS, ReaderSource, path_beneath
from unlearning.types import RecipeError, Refused

SOURCE_KINDS = {
    "TableSource": "table",
    "QuerySource": "query",
    "FolderSource": "folder",
    "ArraysSource": "arrays",
    "ReaderSource": "own program",
}
"""how a claim names what a recipe reads"""
SPOOL = "spool"
"""in the home folder: files without a name, with arrays that are larger than what a worker holds in memory"""
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
        weights: path and SHA-256, by parameter, of a model that was trained elsewhere on everybody.
        processes: how many train a part together. checkpoint_seconds: between two points that it may go on from.
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
    weights: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    processes: int = 1
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    @property
    def source_kinds(self) -> tuple[str, ...]:
        """How a claim names the sources, in their order."""
        return tuple(SOURCE_KINDS[source["kind"]] for source in self.sources.values())

    @property
    def own_readers(self) -> int:
        """How many of the sources a function of the recipe's own reads."""
        return self.source_kinds.count(SOURCE_KINDS[ReaderSource.__name__])

    def order(self, start: Sequence[tuple[str, int]] | None = None, *, imports: bool = False) -> dict[str, Any]:
        """Return what a part is told that calls the recipe.

        ``start``: name and size of each file it begins from. ``imports``: it is handed the weights from elsewhere.
        """
        weights = {name: str(self.roots[name] / path) for name, (path, _) in self.weights.items()}
        return {
            "weights": weights if imports else dict.fromkeys(weights),
            "sources": [*self.sources],
            "public": {name: str(self.roots[name] / path) for name, (path, _) in self.public.items()},
            "start": start,
            "run": self.run,
            "processes": self.processes,
            "checkpoint_seconds": self.checkpoint_seconds,
            "maps": self.maps,
        }


@dataclass(frozen=True)
class SourceUnits:
    """Who is in the sources of a recipe. What leaves as one, a unit, is named by its source and its number there."""

    reader: SourceReader = field(repr=False)
    granularity: Granularity

    @cached_property
    def trained_on(self) -> list[Unit]:
        """The units that are trained on, in order."""
        surveys = self.reader.surveys.items()
        return [(source, number) for source, survey in surveys for number in np.flatnonzero(~survey.aside).tolist()]

    @cached_property
    def _by_digest(self) -> dict[bytes, Unit]:
        """The units that are trained on, by their digest."""
        digests = self.samples.inputs.numpy()
        return {digest.tobytes(): unit for digest, unit in zip(digests, self.trained_on, strict=True)}

    @cached_property
    def aside(self) -> list[Unit]:
        """The units that are kept apart."""
        surveys = self.reader.surveys.items()
        return [(source, number) for source, survey in surveys for number in np.flatnonzero(survey.aside).tolist()]

    def having(self, digests: Tensor) -> list[Unit]:
        """Return the units with these digests (m, 32)."""
        return [self._by_digest[digest.tobytes()] for digest in digests.cpu().numpy()]

    def people_of(self, units: Iterable[Unit]) -> frozenset[tuple[str, ...]]:
        """Return the people of these units, as requests name them."""
        numbers: dict[str, list[int]] = {source: [] for source in self.reader.surveys}
        for source, number in units:
            numbers[source].append(number)
        surveys = self.reader.surveys.items()
        return frozenset().union(
            *(
                survey.people.take(torch.tensor(numbers[source])).distinct()
                for source, survey in surveys
                if numbers[source]
            )
        )

    def people(self, unit: Unit) -> tuple[str, ...]:
        """Return the people of a unit, as requests name them."""
        source, number = unit
        return self._people[source][number]

    @cached_property
    def _people(self) -> dict[str, list[tuple[str, ...]]]:
        return {source: list(survey.people) for source, survey in self.reader.surveys.items()}

    @cached_property
    def samples(self) -> Samples:
        """The units that are trained on as samples (n); their inputs (n, 32) are their digests.

        Raises Refused where there is none, or one has no name and the policy forgets single samples.
        """
        if not self.trained_on:
            raise Refused("The sources hold rows of nobody who is trained on.", "Give rows, or a smaller aside=.")
        chosen = {source: np.flatnonzero(~survey.aside) for source, survey in self.reader.surveys.items()}
        names = [self._names(source, torch.from_numpy(numbers)) for source, numbers in chosen.items()]
        people = [
            self.reader.surveys[source].people.take(torch.from_numpy(numbers)) for source, numbers in chosen.items()
        ]
        digests = [self.reader.surveys[source].digests[numbers] for source, numbers in chosen.items()]
        inputs = torch.from_numpy(np.concatenate(digests))
        targets = torch.zeros(len(inputs), dtype=torch.int64)
        return Samples(Texts.joined(names), Column.joined(people).compact(), inputs, targets)

    def _names(self, source: str, numbers: Tensor) -> Texts:
        """Return the ids of these units (m,): of their rows, or else their people; of several sources with its name."""
        survey = self.reader.surveys[source]
        ids, people, several = survey.ids.take(numbers), survey.people.take(numbers), len(self.reader.surveys) > 1
        unnamed = ids.empty() is not None
        if self.granularity is Granularity.SAMPLE and unnamed:
            what = f"The policy forgets single samples, and the source {source!r} does not name its rows."
            raise Refused(what, "Give the source id= (and no at=), or let the policy forget people.")
        if not (several or unnamed):
            return ids
        place = f"{source}/" if several else ""
        return Texts.of(f"{place}{id or json.dumps(names)}" for id, names in zip(ids, people, strict=True))


class RecipeOfUnits(Recipe):
    """A recipe whose samples are digests: who is kept apart is known by name, and no holdout row is held."""

    def _require_holdout(self) -> None:
        pass


def recipe_of(rows_recipe: RowsRecipe, units: SourceUnits) -> Recipe:
    """Return the recipe that the exact methods work on. Its training is made in worlds (``Fresh``)."""
    nobody = torch.zeros(0, 32, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    return RecipeOfUnits(
        model=Artefact(_of_its_world, continues=bool(rows_recipe.run)),
        samples=units.samples,
        holdout=nobody,
        loss=_of_its_world,
        holdout_subjects=[units.people(unit) for unit in units.aside],
        metric=score,
    )


def score(_outputs: Tensor, _targets: Tensor) -> float:
    """Name the measure in reports; the world that trains measures."""
    raise RuntimeError("the score of a recipe with rows is measured in its world")


def _of_its_world(*_: object) -> Any:
    raise RuntimeError("the files of a recipe with rows are read by whoever serves them")


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
    named = facts["public"] | facts.get("weights", {})
    files |= {parameter: [path] for parameter, (path, _) in named.items()}
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
        weights={name: (path, sha256) for name, (path, sha256) in facts.get("weights", {}).items()},
        processes=facts.get("processes", 1),
        checkpoint_seconds=facts.get("checkpoint_seconds", CHECKPOINT_SECONDS),
    )


@lru_cache(maxsize=16)
def _facts(module: str, files: tuple[tuple[str, bytes], ...], closed: tuple[str, ...]) -> dict[str, Any]:
    return declare(Code(module, dict(files)), closed)


def paths_of(source: Mapping[str, Any]) -> list[str]:
    """Return every path that a source names, beneath one root; a query names none."""
    named = [source[field] for field in ("path", "index", "names") if field in source]
    named += [*source.get("more", ()), *source.get("files", {}).values()]
    return [*named, *([source["person"]["path"]] if source["via"] else [])]


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
    tables = {
        name: enter_with_readers(_table_of_reader(rows_recipe, name))
        for name, record in rows_recipe.sources.items()
        if record["kind"] == ReaderSource.__name__
    }
    reader = read_sources(
        rows_recipe.sources,
        {name: rows_recipe.roots.get(name, Path("/")) for name in rows_recipe.sources},
        databases=databases_of(settings, tenant_id),
        salt=salt,
        until=None if until is None else datetime.fromtimestamp(until / 1e6, UTC),
        most=settings.sample_bytes,
        spool=settings.home / SPOOL,
        tables=tables,
    )
    return SourceUnits(reader, granularity)


def _table_of_reader(rows_recipe: RowsRecipe, name: str) -> AbstractContextManager[int]:
    """Return what opens the sealed file of all rows that the recipe's own function reads. Raises Refused."""
    record, root = rows_recipe.sources[name], rows_recipe.roots[name]
    try:
        path = path_beneath(root, record["path"]).resolve()
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
    closed = [place for place in rows_recipe.closed if not path.is_relative_to(place)]
    return read_by_function(rows_recipe.code, record["function"], path, closed)


def databases_of(settings: Settings, tenant_id: str) -> dict[str, str]:
    """Return the addresses that a tenant's recipes may name: of a tenant but the first they are set as TENANT/NAME."""
    own = "" if tenant_id == DEFAULT_TENANT else f"{tenant_id}/"
    addresses = settings.source_addresses
    names = {name.removeprefix(own): name for name in addresses if name.startswith(own)}
    return {name: addresses[whole] for name, whole in names.items() if "/" not in name}
