"""The model of a recipe with rows that the service trains: asked in worlds, and described here without its code.

Samples are in the manifest, each by a digest of what the recipe made of it. A person whose rows became no sample has
one all the same: whoever was looked at can leave.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from expunge.workers.runtime.build import SOURCE_KINDS, sealed, surroundings_of
from expunge.workers.runtime.drain import look_on
from expunge.workers.runtime.jobs import ASIDE, MAPPED, ROWS
from expunge.workers.runtime.mapping import BlockMaker, KeptBlocks, open_public_files
from expunge.workers.runtime.model_tasks import (
    CONSTANT,
    EXAMPLES,
    FORGOTTEN,
    KEPT,
    STATE,
    VECTOR,
    VECTORS,
    WEIGHTS,
)
from expunge.workers.runtime.rows_recipe import RecipeOfUnits, RowsRecipe, SourceUnits, Unit
from expunge.workers.runtime.worlds import (
    PartOrder,
    SealedRows,
    World,
    enter_with_readers,
    make_world,
    template,
)
from expunge.workers.storage.parts import MadePart
from expunge.workers.storage.threads import own_threads
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.world import DeclaredFile, Enclosure, WorldRecord
from unlearning.model.method import Method
from unlearning.model.problem import Problem, Slot
from unlearning.recipe import METRIC_NAMES, Recipe, Samples
from unlearning.settings import Training
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Ineffective,
    Json,
    RecipeError,
    Refused,
    State,
    Tensors,
    VectorsMissing,
)

ORDERS = 4
"""of one world: an update asks for the description, a person's samples, the update itself and its accuracy"""
CONVERGED = 1e-6
"""in place of the precision that a training ends in; its world has the recipe's"""


class DescribedProblem(Problem):
    """A problem without its module: how its weights lie in a checkpoint, and what asks the worlds for the rest."""

    def __init__(self, recipe: Recipe, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device):
        self.recipe, self.training = recipe, recipe.training
        self.fresh, self.measured_by, self.artefact = None, None, None
        self.device, self.dtype, self.ingredients, self.acts_in_training = device, torch.float32, {}, False
        self.layout = tuple(
            Slot(str(name), tuple(shape), int(start), int(stop), bool(buffer))
            for name, shape, start, stop, buffer in facts["layout"]
        )
        self.dimension = self.layout[-1].stop
        self.trained = next((slot.start for slot in self.layout if slot.buffer), self.dimension)
        self._saved = [(str(name), slot) for name, slot in facts["saved"]]
        self._dtypes = {name: getattr(torch, kind) for name, kind in facts["dtypes"].items()}
        self._constants = {
            name.removeprefix(CONSTANT): value for name, value in tensors.items() if name.startswith(CONSTANT)
        }

    def cast(self, dtype: torch.dtype) -> Problem:  # noqa: ARG002 (as any problem)
        """Return this problem: worlds measure weights in their own type."""
        return self

    def views(self, w: Tensor) -> dict[str, Tensor]:
        parts = {slot.name: w[slot.start : slot.stop].reshape(slot.shape) for slot in self.layout}
        return {
            name: self._constants[name] if slot is None else self._as_saved(parts[slot], self._dtypes[name])
            for name, slot in self._saved
        }

    def _as_saved(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        return part.detach() if dtype.is_floating_point else part.detach().round().to(dtype)


@dataclass
class WorldModel:
    """Asks worlds for what a recipe's own code is needed for: its samples, a training, an update, an accuracy.

    ``aside``: the units, by source, whose people are kept apart and did not leave; accuracy is measured by them.
    """

    recipe: RowsRecipe
    units: SourceUnits
    parts: KeptBlocks
    method: Method
    name: str
    device: torch.device
    aside: Mapping[str, Sequence[int]] = field(default_factory=dict)
    staying: Collection[Unit] = ()
    """the units whose rows the model is made of"""
    used: dict[str, MadePart] = field(default_factory=dict)
    """what was mapped of the rows, by key, without its data"""
    _numbers: dict[bytes, int] = field(default_factory=dict)
    """the number of each sample, by its digest"""
    _rows: dict[tuple[Unit, ...], Mapping[str, SealedRows]] = field(default_factory=dict)
    _world: tuple[ExitStack, World, int] | None = None

    def described(self, staying: Collection[Unit], guarantee: Guarantee) -> tuple[Recipe, DescribedProblem]:
        """Run the recipe on the rows of these units; return its samples by digests, and its problem.

        Raises Refused, Lost, MemoryError.
        """
        self.staying = staying
        facts, tensors = self._ask("describe", staying, {"guarantee": guarantee.value})
        try:
            recipe = self._recipe(facts, tensors)
            return recipe, DescribedProblem(recipe, facts, tensors, self.device)
        except RecipeError as error:
            raise Refused(error.what, error.hint) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _broken("description") from error

    def prepared(
        self, examples: Examples, guarantee: Guarantee, *, cold: bool, threshold: float, reads_apart: bool
    ) -> tuple[State, Tensor]:
        """Train on these samples; return what the method keeps, and the weights that the training ended in."""
        words = {"guarantee": guarantee.value, "cold": cold, "threshold": threshold, **_holders(examples)}
        apart = self._opened(self._aside_units) if reads_apart else {}
        files = {EXAMPLES: self._numbered(examples)}
        facts, tensors = self._ask("prepare", self.staying, words, files, apart)
        return _state(facts, tensors), tensors["learned"]

    def samples_of(self, leaving: Collection[Unit]) -> tuple[Samples, Tensors]:
        """Return the samples of some units by digests, and what they hold, as a version had them that these were in.

        The recipe is run on the rows of both. What it publishes then is thrown away.
        """
        people = sorted({self.units.people(unit) for unit in leaving})
        words = {"guarantee": Guarantee.NONE.value, "people": [list(names) for names in people]}
        facts, tensors = self._ask("samples", [*self.staying, *leaving], words)
        try:
            ids, rows = [*map(str, facts["ids"])], Tensors(tensors["inputs"], tensors["targets"])
            named = Samples(ids, ids, tensors["contents"], torch.zeros(len(ids), dtype=torch.int64))
        except (KeyError, TypeError) as error:
            raise _broken("person's samples") from error
        return named, rows

    def forget(self, state: State, forget: ForgetSet, retain: Examples | None, guarantee: Guarantee) -> Forgotten:
        """Forget by the method."""
        if not forget:
            return Forgotten(state)
        words: dict[str, Any] = {
            "guarantee": guarantee.value,
            "leaving": sorted(forget.people),
            "positions": [*forget.positions],
            "facts": dict(state.facts),
            "draws": secrets.randbits(63),
            "holders": [],
        }
        kept = {f"{KEPT}{name}": value for name, value in state.tensors.items()}
        files = {STATE: {WEIGHTS: state.weights, **kept}}
        if retain is not None:
            words |= _holders(retain)
            files[EXAMPLES] = self._numbered(retain)
        vectors = dict(forget.vectors.read(forget.people))
        if vectors:
            files[VECTORS] = vectors
        if forget.examples is not None:
            known, theirs = words["holders"], forget.examples
            words["holders"] = [*known, *theirs.people.values]
            files[FORGOTTEN] = {
                "inputs": theirs.inputs,
                "targets": theirs.targets,
                "positions": theirs.positions,
                "holders": theirs.people.codes + len(known),
            }
        facts, tensors = self._ask("forget", self.staying, words, files)
        return Forgotten(_state(facts, tensors), _evidence(facts))

    def accuracies(self, weights: Sequence[Tensor]) -> list[float | None]:
        """Measure the model at each of these weights (d,) on the rows of the people kept apart; None: nothing does."""
        apart = self._opened(self._aside_units)
        if not any(self.aside.values()):
            return [None] * len(weights)
        files = {WEIGHTS: {f"{place:06d}": w for place, w in enumerate(weights)}}
        facts, _ = self._ask("measure", self.staying, {"guarantee": Guarantee.NONE.value}, files, apart)
        scores = facts.get("scores")
        if not isinstance(scores, list) or len(scores) != len(weights):
            return [None] * len(weights)
        return [float(score) if isinstance(score, int | float) else None for score in scores]

    def accuracy(self, weights: Tensor) -> float | None:
        return self.accuracies([weights])[0]

    def record(self) -> WorldRecord:
        """Return what a claim says of the worlds that were asked."""
        return WorldRecord(
            walls=Enclosure(template().probe.strength.value),
            code=self.recipe.digest,
            public_files=tuple(DeclaredFile(path, sha256) for path, sha256 in sorted({*self.recipe.public.values()})),
            sources=tuple(SOURCE_KINDS[source["kind"]] for source in self.recipe.sources.values()),
            repeats=None,
        )

    def _recipe(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Recipe:
        """Return the recipe whose samples (n) are digests (n, 32); those of people without any stand behind."""
        people = [tuple(map(str, names)) for names in facts["people"]]
        codes, contents = tensors["codes"].tolist(), tensors["contents"]
        owners = [people[code] for code in codes]
        silent = sorted({self.units.people(unit) for unit in self.staying}.difference(owners))
        ids = [*map(str, facts["ids"]), *map(silent_id, silent)]
        samples = Samples(
            ids,
            [*owners, *silent],
            torch.cat([contents, torch.zeros(len(silent), 32, dtype=torch.uint8)]),
            torch.zeros(len(ids), dtype=torch.int64),
        )
        self._numbers = {row.tobytes(): number for number, row in enumerate(contents.numpy())}
        nobody = torch.zeros(0, 32, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
        return RecipeOfUnits(
            model=_in_its_world,
            samples=samples,
            holdout=nobody,
            loss="cross_entropy",
            training=Training(epochs=1, converge=CONVERGED if facts["converges"] else None),
            holdout_subjects=[self.units.people(unit) for unit in self.units.aside],
            metric=_metric(facts["metric"]),
        )

    def _numbered(self, examples: Examples) -> dict[str, Tensor]:
        """Return the number, position and holder of each sample that the recipe made."""
        numbers = [self._numbers.get(row.tobytes(), -1) for row in examples.inputs.cpu().numpy()]
        chosen = torch.tensor(numbers, dtype=torch.int64)
        real = chosen >= 0
        return {
            "numbers": chosen[real],
            "positions": examples.positions.cpu()[real],
            "holders": examples.people.codes[real],
        }

    def _ask(
        self,
        task: str,
        staying: Collection[Unit],
        words: Mapping[str, Any],
        files: Mapping[str, Mapping[str, Tensor]] | None = None,
        apart: Mapping[str, SealedRows] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Have a part of a world carry out a task on the rows of these units."""
        rows = self._opened(staying)
        order = {
            "task": task,
            "method": {"name": self.name, "options": _options(self.method)},
            "device": str(self.device),
            "sources": [*rows],
            "public": {name: str(self.recipe.roots[name] / path) for name, (path, _) in self.recipe.public.items()},
            "start": None,
            "run": self.recipe.run,
            "maps": self.recipe.maps,
            **words,
        }
        with ExitStack() as stack:
            handles = _handles(rows, ROWS) | _handles(apart or {}, ASIDE)
            for name, tensors in (files or {}).items():
                handles[name] = stack.enter_context(sealed(_packed(tensors)))
            outcome = self._one_part()(PartOrder(order, handles))
        facts = dict(outcome.facts)
        _refuse(facts, len(words.get("leaving", ())))
        try:
            return facts, load_tensors(outcome.data) if outcome.data else {}
        except (SafetensorError, ValueError) as error:
            raise _broken("answer") from error

    def _one_part(self) -> World:
        """Return a part of the open world that was asked for nothing yet; a world is opened where none is left."""
        if self._world is not None and self._world[2] == 0:
            self._close_world()
        if self._world is None:
            stack = enter_with_readers(ExitStack())
            world = stack.enter_context(
                make_world(
                    "model",
                    self.recipe.code,
                    ORDERS,
                    opened=open_public_files(self.recipe),
                    closed=self.recipe.closed,
                    threads=int(own_threads()),
                    progress=look_on,
                )
            )
            self._world = stack, world, ORDERS
        stack, world, left = self._world
        self._world = stack, world, left - 1
        return world

    def _close_world(self) -> None:
        if self._world is not None:
            self._world[0].close()
            self._world = None

    @property
    def _aside_units(self) -> list[Unit]:
        return [(source, number) for source, numbers in self.aside.items() for number in numbers]

    def _opened(self, units: Collection[Unit]) -> Mapping[str, SealedRows]:
        """Return the rows of these units, which are open until the readers end."""
        key = tuple(sorted(units))
        if key not in self._rows:
            self._close_world()  # functions of rows are called in worlds of their own, and a template makes one at once
            numbers: dict[str, list[int]] = {source: [] for source in self.recipe.sources}
            for source, number in key:
                numbers[source].append(number)
            apart = key == tuple(sorted(self._aside_units))
            self._rows[key] = enter_with_readers(self._blocks.rows(numbers, keep=not apart))
        return self._rows[key]

    @cached_property
    def _blocks(self) -> BlockMaker:
        surroundings = surroundings_of(self.recipe, self.device)
        return BlockMaker(self.recipe, self.units.reader, self.parts, surroundings, self.used)


def silent_id(people: Sequence[str]) -> str:
    """Return the id that stands for people of whose rows no sample was made."""
    return f"no sample of {json.dumps(people)}"


def _options(method: Method) -> dict[str, Json]:
    names = [option.name for option in fields(method) if option.init]  # type: ignore[arg-type]
    values = {name: getattr(method, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str | None)}


def _holders(examples: Examples) -> dict[str, Any]:
    return {"holders": [*examples.people.values]}


def _handles(rows: Mapping[str, SealedRows], kind: str) -> dict[str, int]:
    files = {f"{kind}{source}": sealed.handle for source, sealed in rows.items()}
    arrays = ((source, *mapped) for source, sealed in rows.items() for mapped in sealed.mapped.items())
    return files | {f"{MAPPED}{kind}{source} {function}": array.handle for source, function, array in arrays}


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})


def _state(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> State:
    try:
        return State(
            weights=tensors[WEIGHTS],
            tensors={name.removeprefix(KEPT): value for name, value in tensors.items() if name.startswith(KEPT)},
            facts=facts["facts"],
            vectors={name.removeprefix(VECTOR): value for name, value in tensors.items() if name.startswith(VECTOR)},
        )
    except KeyError as error:
        raise _broken("state") from error


def _evidence(facts: Mapping[str, Any]) -> dict[str, Json]:
    evidence = facts.get("evidence")
    return evidence if isinstance(evidence, dict) else {}


def _refuse(facts: Mapping[str, Any], leaving: int) -> None:
    """Raise what the method refused in its world."""
    match facts:
        case {"missing": int(count)}:
            raise VectorsMissing(count, leaving)
        case {"refused": [str(what), str(hint)], "ineffective": bool(ineffective)}:
            raise (Ineffective if ineffective else Refused)(what, hint)


def _broken(what: str) -> Refused:
    return Refused(f"The recipe's process gave a {what} that is none.", "Leave the service's own names alone in it.")


def _in_its_world(*_: object) -> Any:
    raise RuntimeError("a recipe with rows is asked in its world alone")


def _metric(name: object) -> Any:
    """Return what names the measure in reports; the world that is asked measures."""
    if name is None or name in METRIC_NAMES:
        return name

    def measure(_outputs: Tensor, _targets: Tensor) -> float:
        raise RuntimeError("a recipe with rows is measured in its world alone")

    measure.__name__ = str(name)
    return measure
