"""What an interrupted preparation left behind, opened again: its recipe, its samples and a sealed state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.infra.files import Damaged
from service.infra.tables import Generation
from service.infra.tenants import recipes_of
from unlearning.accounting.policy import Policy
from unlearning.types import Examples, State
from workers.runtime import recipes
from workers.runtime.model import Bench, build
from workers.runtime.process import Process
from workers.runtime.work_units import BUILT
from workers.storage import manifest
from workers.storage import private_state as state
from workers.storage.checkpoint_format import Malformed
from workers.storage.encryption import Unsealable
from workers.storage.storage import Storage


class Unprepared(RuntimeError):
    """What was prepared cannot be used any more: preparation starts anew."""


@dataclass(frozen=True)
class Resumed:
    bench: Bench
    examples: Examples
    state: State


def note_of(generation: Generation, name: str) -> dict[str, Any] | None:
    """What an interrupted preparation noted under ``name`` in the manifest, while the generation is being built."""
    found = (generation.manifest or {}).get(name)
    return found if isinstance(found, dict) and generation.status in BUILT else None


def resume(process: Process, generation: Generation, recipe: str, note: Mapping[str, Any]) -> Resumed:
    """Open the state that ``note`` names, with the recipe as it was. Raises Unprepared, Refused."""
    frozen, policy = generation.manifest or {}, Policy.from_json(note["policy"])
    bench = build(process.settings, generation.tenant_id, recipe, policy)
    if bench.digest != frozen["recipe_digest"] or not manifest.replayable(frozen["libraries"], bench.problem.device):
        raise Unprepared("the recipe or its surroundings changed")
    try:
        made = state.load(process.storage.private, process.storage.sealer, note["state"], bench.problem.device)
        examples = _examples(process, generation, bench, recipe, policy)
    except (Damaged, Unsealable, Malformed, manifest.Changed) as error:
        raise Unprepared(type(error).__name__) from None
    return Resumed(bench, examples, made)


def drop(storage: Storage, generation_id: int, name: str) -> None:
    """The note and its sealed state go; the scheduler repairs what is left."""
    with storage.database.write() as session:
        generation = session.get_one(Generation, generation_id)
        kept = dict(generation.manifest or {})
        note = kept.pop(name, None)
        if note is not None:
            generation.manifest = kept
    if note is not None:
        storage.private.delete(note["state"])


def _examples(process: Process, generation: Generation, bench: Bench, recipe: str, policy: Policy) -> Examples:
    samples = recipes.load(recipes_of(process.settings.recipes, generation.tenant_id), recipe).recipe.samples
    with process.storage.database.read() as session:
        places = manifest.places(session, generation.id)
    entries = manifest.entries(process.storage.pepper, generation.tenant_id, samples, policy.granularity)
    return manifest.found_again(samples, entries, places, frozenset(), bench.problem.device)
