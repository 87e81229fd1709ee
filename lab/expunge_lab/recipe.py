"""Load a recipe with rows for the laboratory, from its path. This process runs it, on everybody's data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from expunge_lab.attack.may_be_drawn import asks_to_leave
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_workers.guarantee.terms import require_computed_without_recipe
from expunge_workers.runtime import recipes
from expunge_workers.runtime.failures import refusal_of
from expunge_workers.runtime.model_tasks import affine_for_judge, require_given_by_rows
from expunge_workers.runtime.rows_recipe import databases_of, paths_of, root_of, salt_of
from unlearning.accounting.certificate import Guarantee
from unlearning.methods.rewind import Rewind
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.rows import PublicFile, Published, Source, call_recipe, source_to_json
from unlearning.types import RecipeError, Refused

PUBLISHED = "The recipe trains by itself and returns files, and the laboratory compares weights."
COSTS = "`expunge check PATH --measure` measures what retrain and shards cost it; both are exact."


@dataclass(frozen=True)
class LabRecipe:
    """A recipe as the laboratory measures it: samples and holdout are tensors.

    Args:
        judged: whether a process without its code computes with the model, so that a guarantee can be ``proved``.
    """

    recipe: Recipe
    judged: bool

    def guarantee(self, asked: str | None) -> str | None:
        """Return what a policy asks for, as a registration decides.

        Raises Refused where the recipe's own code would compute the bound.
        """
        if self.judged:
            return asked
        require_computed_without_recipe(asked)
        return asked or Guarantee.NONE.value


def place_of(recipe: str | Path) -> tuple[Path, str]:
    """Return a recipe's folder and name there, from the path of its file or folder."""
    place = Path(recipe).resolve()
    return place.parent, place.stem if place.suffix == ".py" else place.name


def load_recipe(recipe: str | Path, settings: Settings, tenant_id: str | None = None) -> LabRecipe:
    """Run a recipe on the rows of everybody but those who asked to be forgotten.

    Sources lie in the recipe's folder, or in the tenant's of ``EXPUNGE_DATA``. Without a tenant those who are kept
    apart are the same as where the recipe is called by hand; with one, as in the service.

    Args:
        tenant_id: whose requests are read, and are left out; None: none are read.

    Raises:
        Refused: the recipe asks for no rows, does not run, trains by itself (``ul.Published``), or the record cannot be
            read.
        RecipeError: nobody is left.
    """
    folder, name = place_of(recipe)
    loaded = _load(folder, name, settings, tenant_id, None)
    if tenant_id is not None:
        loaded = _load(folder, name, settings, tenant_id, asks_to_leave(loaded.samples, tenant_id, settings))
    try:
        require_given_by_rows(loaded)
        return LabRecipe(loaded, affine_for_judge(Problem(loaded), loaded, Rewind()) is not None)
    except (Refused, RecipeError):
        raise
    except Exception as error:  # the recipe's model
        refused = refusal_of(error, folder)
        if refused is None:
            raise
        raise refused from None


def _load(
    folder: Path, name: str, settings: Settings, tenant_id: str | None, is_gone: Callable[[str], bool] | None
) -> Recipe:
    owner = tenant_id or DEFAULT_TENANT
    call = partial(
        _call,
        folders=(recipes.find(folder, name).parent, settings.data / owner),
        databases=databases_of(settings, owner),
        salt=b"" if tenant_id is None else salt_of(Pepper.load(settings.pepper_file), owner),
        is_gone=is_gone,
    )
    return recipes.load(folder, name, call)


def _call(recipe: Callable[..., Any], *, folders: tuple[Path, ...], **how: Any) -> Any:
    def root(declared: Source | PublicFile) -> Path:
        paths = [declared.path] if isinstance(declared, PublicFile) else paths_of(source_to_json(declared))
        return root_of(folders, paths, ()) if paths else folders[0]

    if not any(isinstance(parameter.default, Source) for parameter in inspect.signature(recipe).parameters.values()):
        hint = "Write `def recipe(rows=ul.table('people.csv', person='person'))`; docs/rows.md says more."
        raise Refused("recipe() asks for no rows, and opens nothing by itself.", hint)
    made = call_recipe(recipe, root, **how)
    if isinstance(made, Published):
        raise Refused(PUBLISHED, COSTS)
    return made
