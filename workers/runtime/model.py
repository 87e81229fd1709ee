"""An opened model: its recipe, its problem on the device, its method. A worker keeps it between updates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sqlalchemy import select

from service.infra.db import Database
from service.infra.settings import Settings
from service.infra.tables import Version
from service.infra.tenants import recipes_of
from unlearning.accounting.certificate import Part
from unlearning.accounting.policy import Policy
from unlearning.model.method import Method
from unlearning.model.parts import parts_of
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import RecipeError, Refused, State
from workers.runtime import recipes
from workers.runtime.failures import refusal_of
from workers.runtime.method_options import method_of


@dataclass(frozen=True)
class Bench:
    """An opened model. ``digest`` is that of the recipe's code, ``settings`` that of its settings; ``parts`` are the
    model's declared parts."""

    recipe: Recipe
    problem: Problem
    method: Method
    digest: str
    settings: str
    parts: tuple[Part, ...]


class Benches:
    """The model that was worked on last, opened again when its recipe's code changes, and its current state."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: dict[int, Bench] = {}
        self._state: tuple[str, State] | None = None

    def state_of(self, digest: str) -> State | None:
        """Return the state of that digest if this process published it last: it need not be read and decrypted."""
        return self._state[1] if self._state is not None and self._state[0] == digest else None

    def remember(self, digest: str, state: State) -> None:
        """Keep the state of the version that was just published; one state at a time."""
        self._state = (digest, replace(state, vectors={}))

    def drop_superseded(self, database: Database) -> None:
        """Drop the kept state if its version is not current any more: another worker may have published.

        A thread may call this while an update is computed. That holds the state itself.
        """
        kept = self._state
        if kept is None:
            return
        with database.read() as session:
            current = select(Version.id).where(Version.state == kept[0], Version.status == "current")
            superseded = session.scalar(current.limit(1)) is None
        if superseded and self._state is kept:
            self._state = None

    def of(self, generation_id: int, tenant_id: str, recipe: str, policy: Policy) -> Bench:
        """Return the generation's model. Raises Refused as ``build`` does."""
        kept = self._kept.get(generation_id)
        folder = recipes_of(self._settings.recipes, tenant_id)
        if kept is None or recipes.digest_of(recipes.find(folder, recipe)) != kept.digest:
            kept = build(self._settings, tenant_id, recipe, policy)
            self._kept = {generation_id: kept}
        return kept


def build(settings: Settings, tenant_id: str, recipe: str, policy: Policy) -> Bench:
    """Run the recipe; return its problem and method, set up. Raises Refused with a plain reason."""
    loaded = recipes.load(recipes_of(settings.recipes, tenant_id), recipe)
    try:
        return opened(loaded, policy, device_of(settings.device))
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
    except Exception as error:  # the model's constructor is the user's code
        refused = refusal_of(error, settings.recipes)
        if refused is None:
            raise
        raise refused from None


def opened(loaded: recipes.Loaded, policy: Policy, device: torch.device) -> Bench:
    """Set up a recipe that was run. Raises Refused and RecipeError; what ``model()`` raises is not caught."""
    method = method_of(policy)
    problem = Problem(method.recipe(loaded.recipe), device)
    return Bench(loaded.recipe, problem, method, loaded.digest, loaded.settings, parts_of(loaded.recipe))


def device_of(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, or the CPU if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
