"""Load a recipe of either form for the laboratory, from its path. This process runs it, on everybody's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import DEFAULT_TENANT
from expunge.workers.runtime import recipes
from expunge.workers.runtime.failures import refusal_of
from expunge.workers.runtime.model import takes_rows
from expunge.workers.runtime.model_tasks import head_for_judge, require_no_other_training
from expunge.workers.runtime.recipes import LoadedRecipe
from expunge.workers.runtime.rows_recipe import databases_of, paths_of, root_of, salt_of
from expunge_lab.attack.may_be_drawn import asks_to_leave, may_be_drawn
from unlearning.accounting.certificate import Guarantee
from unlearning.model.parts import parts_of
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.rows import PublicFile, Published, Source, call_recipe, source_to_json
from unlearning.types import RecipeError, Refused

PUBLISHED = "The recipe trains by itself and returns files, and the laboratory compares weights."
COSTS = "`expunge check PATH --measure` measures what retrain and shards cost it; both are exact."


@dataclass(frozen=True)
class LabRecipe(LoadedRecipe):
    """A recipe as the laboratory measures it: samples and holdout are tensors.

    Args:
        judged: of a recipe with rows, whether a process without its code computes with the model, so that a guarantee
            can be ``proved``; None: the recipe is of the old form.
    """

    judged: bool | None = None

    def guarantee(self, asked: str | None) -> str | None:
        """Return what a policy asks for, as a registration decides.

        Raises Refused where nothing but ``none`` can be had by methods that train nothing anew.
        """
        if self.judged is not False:
            return asked
        if asked not in (None, Guarantee.NONE.value, Guarantee.EXACT.value):
            what = f"The guarantee {asked} is had with rows by a linear head under a named loss that converges."
            raise Refused(what, "Ask for the guarantee none; or choose retrain, shards or late, which are exact.")
        return asked or Guarantee.NONE.value


def place_of(recipe: str | Path) -> tuple[Path, str]:
    """Return a recipe's folder and name there, from the path of its file or folder."""
    place = Path(recipe).resolve()
    return place.parent, place.stem if place.suffix == ".py" else place.name


def has_rows(recipe: str | Path, settings: Settings) -> bool:
    """Whether the recipe's parameters are sources. Raises Refused where there is no such recipe."""
    folder, name = place_of(recipe)
    return takes_rows(settings.model_copy(update={"recipes": folder}), DEFAULT_TENANT, name)


def load_recipe(recipe: str | Path, settings: Settings, tenant_id: str | None = None) -> LabRecipe:
    """Run a recipe of either form, on everybody but those who asked to be forgotten.

    Sources lie in the recipe's folder, or in the tenant's of ``EXPUNGE_DATA``. Without a tenant those who are kept
    apart are the same as where the recipe is called by hand; with one, as in the service.

    Args:
        tenant_id: whose requests are read, and are left out; None: none are read.

    Raises:
        Refused: the recipe does not run, trains by itself (``ul.Published``), or the record cannot be read.
        RecipeError: nobody is left.
    """
    folder, name = place_of(recipe)
    if not has_rows(recipe, settings):
        loaded = recipes.load(folder, name)
        drawn = loaded.recipe if tenant_id is None else may_be_drawn(loaded.recipe, tenant_id, settings)
        return LabRecipe(drawn, loaded.digest, loaded.settings)
    loaded = _load_with_rows(folder, name, settings, tenant_id, None)
    if tenant_id is not None:
        is_gone = asks_to_leave(loaded.recipe.samples, tenant_id, settings)
        loaded = _load_with_rows(folder, name, settings, tenant_id, is_gone)
    try:
        return _measurable(loaded)
    except (Refused, RecipeError):
        raise
    except Exception as error:  # the recipe's model
        refused = refusal_of(error, folder)
        if refused is None:
            raise
        raise refused from None


def _load_with_rows(
    folder: Path, name: str, settings: Settings, tenant_id: str | None, is_gone: Callable[[str], bool] | None
) -> LoadedRecipe:
    owner = tenant_id or DEFAULT_TENANT
    call = partial(
        _call,
        folders=(folder, settings.data / owner),
        databases=databases_of(settings, owner),
        salt=b"" if tenant_id is None else salt_of(Pepper.load(settings.pepper_file), owner),
        is_gone=is_gone,
    )
    return recipes.load(folder, name, call)


def _call(recipe: Callable[..., Any], *, folders: tuple[Path, ...], **how: Any) -> Any:
    def root(declared: Source | PublicFile) -> Path:
        paths = [declared.path] if isinstance(declared, PublicFile) else paths_of(source_to_json(declared))
        return root_of(folders, paths, ()) if paths else folders[0]

    made = call_recipe(recipe, root, **how)
    if isinstance(made, Published):
        raise Refused(PUBLISHED, COSTS)
    return made


def _measurable(loaded: LoadedRecipe) -> LabRecipe:
    """Refuse what a recipe with rows cannot give, and say whether its model has a judge."""
    require_no_other_training(loaded.recipe)
    judged = head_for_judge(Problem(loaded.recipe), loaded.recipe) is not None
    return LabRecipe(_declared(loaded.recipe), loaded.digest, loaded.settings, judged)


def _declared(recipe: Recipe) -> Recipe:
    """Declare all that the model brings along: a service computes it from the rows of those who stay."""
    return replace(recipe, public={part.name: part.digest for part in parts_of(recipe)})
