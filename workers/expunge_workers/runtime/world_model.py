"""The model of a recipe with rows that the service trains: asked in worlds, and described here without its code.

Samples are in the manifest, each by a digest of what the recipe made of it. A person whose rows became no sample has
one all the same: whoever was looked at can leave.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from expunge_workers.runtime.build import handles_of, sealed, seed_of, surroundings_of
from expunge_workers.runtime.drain import look_on
from expunge_workers.runtime.jobs import ASIDE, ROWS
from expunge_workers.runtime.mapping import BlockMaker, KeptBlocks, open_public_files
from expunge_workers.runtime.model_tasks import (
    APART,
    BESIDE,
    CHECKPOINT,
    CONSTANT,
    EXAMPLES,
    FEATURES,
    FORGOTTEN,
    IDS,
    IMPORTED,
    KEPT,
    LEARNED,
    OBJECTIVE,
    PLANNED,
    START,
    STATE,
    TARGETS,
    VECTOR,
    VECTORS,
    WEIGHT,
    WEIGHTS,
    affine_model,
    linear_training,
)
from expunge_workers.runtime.rows_recipe import RecipeOfUnits, RowsRecipe, SourceUnits, Unit
from expunge_workers.runtime.worlds import (
    PartOrder,
    SealedRows,
    World,
    enter_with_readers,
    make_world,
    open_judge,
    template,
)
from expunge_workers.storage.checkpoint_format import encode
from expunge_workers.storage.manifest import places_of
from expunge_workers.storage.parts import MadePart
from expunge_workers.storage.threads import own_threads
from unlearning.accounting.certificate import Constant, Guarantee
from unlearning.accounting.world import DeclaredFile, Enclosure, WorldRecord
from unlearning.bounds.minimiser import AROUND, DRAWN
from unlearning.columns import Column, Texts, row_bytes, row_digests
from unlearning.model.method import Method
from unlearning.model.problem import Problem, Slot
from unlearning.model.training import Whole
from unlearning.recipe import METRIC_NAMES, Recipe, Samples
from unlearning.rows import Published
from unlearning.settings import Training
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Ineffective,
    Json,
    Need,
    RecipeError,
    Refused,
    State,
    Tensors,
    VectorsMissing,
)

ORDERS = 3
"""of one world: an update asks for the description, the update itself and its accuracy; of a person's samples rarely"""
JUDGED_ORDERS = 2
"""of one where a judge does all else: the description, and the features of people who are kept apart"""
SEED = seed_of(Whole())
"""of every generator, as where the recipe trains by itself in one piece"""


class NoSamples(Refused):
    """The recipe trained a model by itself, and a method that needs samples was to follow."""


class _Checkpoint:
    """How weights lie in a checkpoint, and what stands there beside them, as a world described it."""

    def __init__(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.layout = tuple(
            Slot(str(name), tuple(shape), int(start), int(stop), bool(buffer))
            for name, shape, start, stop, buffer in facts["layout"]
        )
        self._saved = [(str(name), slot) for name, slot in facts["saved"]]
        self._dtypes = {name: getattr(torch, kind) for name, kind in facts["dtypes"].items()}
        self._constants = {
            name.removeprefix(CONSTANT): value for name, value in tensors.items() if name.startswith(CONSTANT)
        }

    def views(self, w: Tensor) -> dict[str, Tensor]:
        parts = {slot.name: w[slot.start : slot.stop].reshape(slot.shape) for slot in self.layout}
        return {
            name: self._constants[name] if slot is None else self._as_saved(parts[slot], self._dtypes[name])
            for name, slot in self._saved
        }

    def _as_saved(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        return part.detach() if dtype.is_floating_point else part.detach().round().to(dtype)


class DescribedProblem(Problem):
    """A problem without its module, which worlds of the recipe compute with."""

    def __init__(self, recipe: Recipe, checkpoint: _Checkpoint, device: torch.device) -> None:
        self.recipe, self.training, self._checkpoint = recipe, recipe.training, checkpoint
        self.fresh, self.measured_by, self.artefact = None, None, None
        self.device, self.dtype, self.ingredients, self.acts_in_training = device, torch.float32, {}, False
        self.layout = checkpoint.layout
        self.dimension = self.layout[-1].stop
        self.trained = next((slot.start for slot in self.layout if slot.buffer), self.dimension)

    def cast(self, dtype: torch.dtype) -> Problem:  # noqa: ARG002 (as any problem)
        """Return this problem: worlds measure weights in their own type."""
        return self

    def views(self, w: Tensor) -> dict[str, Tensor]:
        return self._checkpoint.views(w)


class JudgedProblem(Problem):
    """The problem of a linear layer or a tangent on features that are not here; its checkpoint is the recipe's."""

    def __init__(self, recipe: Recipe, checkpoint: _Checkpoint, device: torch.device) -> None:
        super().__init__(recipe, device)
        self._checkpoint = checkpoint
        if self.dimension != checkpoint.layout[-1].stop:
            raise ValueError("the model is no linear layer, and no tangent")

    def views(self, w: Tensor) -> dict[str, Tensor]:
        return self._checkpoint.views(w)


@dataclass
class _OpenWorld:
    """A world that is open: what ends it, and how many orders it can still be given."""

    stack: ExitStack
    ask: World
    left: int


@dataclass
class WorldModel:
    """Asks worlds for what a recipe's own code is needed for: its samples, a training, an update, an accuracy.

    Of a linear head that ends in a minimiser its code is needed for the features alone. All else is asked of a judge: a
    process without the recipe, so that nothing of it sees earlier weights or computes a bound.

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
    others: Sequence[str] = ()
    """methods of which the description says, too, whether they could follow the training"""
    digest_of: Callable[[str], str] = str
    """how the manifest names a person"""
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """why methods cannot follow it, and what to do instead"""
    used: dict[str, MadePart] = field(default_factory=dict)
    """what was mapped of the rows, by key, without its data"""
    orders: int = ORDERS
    """how many a world is made for; a further one is given to another world"""
    imports: bool = False
    """it is described for the first version of a model that was trained elsewhere"""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """the files that are published with the model"""
    _imported: Mapping[str, Tensor] = field(default_factory=dict)
    """the weights from elsewhere, for a judge"""
    _contents: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty((0, 32), dtype=np.uint8))
    """a digest of each sample that the recipe made, (n, 32) uint8"""
    _head: Mapping[str, Any] | None = None
    """what a judge is told of the linear head; None: the model has none"""
    _objective: Mapping[str, Tensor] = field(default_factory=dict)
    """of the linear head: features, targets and weights"""
    _objective_of_judge: Mapping[str, Tensor] | None = None
    """what the judge computed with last; None: it answered no order yet, or failed at the last one"""
    _metric: str | None = None
    recorded: bool = False
    """the recipe gives the steps of the training elsewhere"""
    brings_holdout: bool = False
    """the recipe gives its holdout, and makes it of no rows that are kept apart"""
    _rows: dict[tuple[Unit, ...], Mapping[str, SealedRows]] = field(default_factory=dict)
    _world: _OpenWorld | None = None

    @property
    def count(self) -> int:
        """How many samples the recipe made."""
        return len(self._contents)

    @property
    def features(self) -> int:
        """How many numbers the linear head is given of a sample; 0: there is none."""
        return 0 if self._head is None else int(self._head["features"])

    @property
    def has_judge(self) -> bool:
        return self._head is not None

    def described(self, staying: Collection[Unit], *, again: bool = False) -> tuple[Recipe, Problem]:
        """Run the recipe on the rows of these units; return its samples by digests, and its problem.

        ``again``: it was described at registration, and a few samples show that it is the same still.

        Raises Refused, Lost, MemoryError.
        """
        self.staying = staying
        facts, tensors = self._ask_recipe("describe", staying, {"methods": [self.name, *self.others], "again": again})
        try:
            self.refused = {name: why for name, why in facts["refused"].items() if why is not None}
            if self.name in self.refused:
                raise RecipeError(*self.refused[self.name])
            self._head, self._metric = facts.get("head"), facts["metric"]
            self.brings_holdout, self.recorded = bool(facts["holdout"]), bool(facts["recorded"])
            self._objective = {name: tensors[name] for name in (FEATURES, TARGETS, WEIGHT, START) if name in tensors}
            if self._head is not None and self._head["steps"] is not None:
                tensors["contents"] = self._contents_of_steps(facts, tensors)
            files = {name: value for name, value in tensors.items() if name.startswith(BESIDE)}
            self.beside = {name.removeprefix(BESIDE): value.numpy().tobytes() for name, value in files.items()}
            if self.beside:
                self.published({})
            self._imported = {IMPORTED: tensors[IMPORTED]} if self.imports else {}
            recipe, checkpoint = self._recipe(facts, tensors), _Checkpoint(facts, tensors)
            kind = DescribedProblem if self._head is None else JudgedProblem
            return recipe, kind(recipe, checkpoint, self.device)
        except RecipeError as error:
            raise Refused(error.what, error.hint) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable("description") from error

    def prepared(
        self,
        examples: Examples,
        guarantee: Guarantee,
        *,
        cold: bool,
        threshold: float,
        holders_with_vector: Sequence[str] | None = None,
    ) -> tuple[State, Tensor]:
        """Train on these samples; return what the method keeps, and the weights that the training ended in.

        ``holders_with_vector``: None: all.
        """
        tuned = self.method.reads_holdout
        if tuned and not any(self.aside.values()):
            what = f"{self.name} chooses its step by people who are kept apart, and no source keeps any."
            raise Refused(what, 'Say so in the source, as in ul.table("people.csv", person="id", aside=0.2).')
        words = {
            "guarantee": guarantee.value,
            "cold": cold,
            "threshold": threshold,
            "holders_with_vector": holders_with_vector,
            **_holders(examples),
        }
        files = {EXAMPLES: self._numbered(examples)}
        if self.has_judge and self._imported and not cold:
            files[IMPORTED] = dict(self._imported)
        if tuned:  # by a process that nobody kept apart was handed to: a version may be claimed to be these weights
            files[LEARNED] = {LEARNED: self._compute("train", words, files)[1][LEARNED]}
        facts, tensors = self._compute("prepare", words, files, reads_apart=tuned)
        state, learned = _state(facts, tensors, judged=self.has_judge), tensors[LEARNED]
        if tuned and not torch.equal(state.weights, files[LEARNED][LEARNED]):
            what = "The recipe's process changed the trained weights when it was handed people who are kept apart."
            raise Refused(what, "Let holdout read its rows and change nothing.")
        return state, learned

    def trained(self, examples: Examples, guarantee: Guarantee) -> Tensor:
        """Train on these samples from the start, and return the weights (d,)."""
        words = {"guarantee": guarantee.value, "cold": True, **_holders(examples)}
        return self._compute("train", words, {EXAMPLES: self._numbered(examples)})[1][LEARNED]

    def useful(
        self, state: State, examples: Examples, guarantee: Guarantee, *, denominator: int | None, max_distance: float
    ) -> tuple[tuple[Constant, ...], dict[str, Json]]:
        """Return the constants of the bound, and what registration reports of it. Raises Refused: it is vacuous."""
        words: dict[str, Any] = {"guarantee": guarantee.value, "facts": dict(state.facts)}
        words |= {"denominator": denominator, "max_distance": max_distance}
        files = {EXAMPLES: self._numbered(examples), STATE: _tensors_of(state)}
        tangent = self._head is not None and bool(self._head["tangent"])
        facts, _ = self._compute("useful", words | _holders(examples), files, reads_apart=tangent)
        drawn = {AROUND: DRAWN} if self._head is not None and self._head["drawn"] else {}
        return tuple(Constant(**constant) for constant in facts["constants"]), facts["report"] | drawn

    def refined(
        self,
        forgotten: Forgotten,
        retain: Examples,
        guarantee: Guarantee,
        *,
        denominator: int | None,
        max_distance: float,
        constants: Mapping[str, float],
    ) -> tuple[Tensor, float]:
        """Move an update's weights until the bound is at most ``max_distance``, where that can be; return it too."""
        words = {
            "guarantee": guarantee.value,
            "facts": dict(forgotten.state.facts),
            "evidence": dict(forgotten.evidence),
            "denominator": denominator,
            "max_distance": max_distance,
            "values": dict(constants),
            **_holders(retain),
        }
        files = {EXAMPLES: self._numbered(retain), STATE: _tensors_of(forgotten.state)}
        facts, tensors = self._compute("refine", words, files)
        return tensors[WEIGHTS], float(facts["distance"])

    def samples_of(self, leaving: Collection[Unit]) -> tuple[Samples, Tensors]:
        """Return the samples of some units by digests, and what they hold, as a version had them that these were in.

        The recipe is run on the rows of both. What it publishes then is thrown away.
        """
        people = sorted({self.units.people(unit) for unit in leaving})
        words = {"people": [list(names) for names in people]}
        facts, tensors = self._ask_recipe("samples", [*self.staying, *leaving], words)
        try:
            ids, rows = [*map(str, facts["ids"])], Tensors(tensors["inputs"], tensors["targets"])
            named = Samples(ids, ids, tensors["contents"], torch.zeros(len(ids), dtype=torch.int64))
        except (KeyError, TypeError) as error:
            raise _unreadable("person's samples") from error
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
        files = {STATE: _tensors_of(state)}
        if retain is not None:
            words |= _holders(retain)
            files[EXAMPLES] = self._numbered(retain)
        carried = retain.people.distinct() if retain is not None and Need.VECTORS in self.method.needs else ()
        vectors = dict(forget.vectors.read(forget.people.union(carried)))
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
        facts, tensors = self._compute("forget", words, files)
        return Forgotten(_state(facts, tensors, judged=self.has_judge), _evidence(facts))

    def published(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor] | bytes:
        """Return what is published of these tensors: with files beside them an archive. Raises RecipeError."""
        if not self.beside:
            return tensors
        return bytes(Published({**self.beside, CHECKPOINT: encode(tensors, {"format": "pt"})}))

    def positions(self, examples: Examples) -> Tensor:
        """Return the positions (m,) of those samples that the recipe made, as it was described last."""
        return self._numbered(examples)["positions"]

    def retrained(self, retain: Examples, planned: Tensor, reference: str, dtype: torch.dtype) -> Tensor:
        """Return the weights (d,) of the training at the positions ``planned`` (n,), without those not retained.

        Raises Refused.
        """
        kind = str(dtype).removeprefix("torch.")
        words = {"guarantee": Guarantee.NONE.value, "reference": reference, "dtype": kind, **_holders(retain)}
        files = {EXAMPLES: self._numbered(retain), PLANNED: {PLANNED: planned}}
        try:
            return self._compute("retrain", words, files)[1][LEARNED]
        except KeyError as error:
            raise _unreadable("training", judged=self.has_judge) from error

    def accuracies(self, weights: Sequence[Tensor]) -> list[float | None]:
        """Measure the model at each of these weights (d,) on the rows of the people kept apart; None: nothing does."""
        if not self.brings_holdout and not any(self.aside.values()):
            return [None] * len(weights)
        files = {WEIGHTS: {f"{place:06d}": w for place, w in enumerate(weights)}}
        facts, _ = self._compute("measure", {"guarantee": Guarantee.NONE.value}, files, reads_apart=True)
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
            sources=self.recipe.source_kinds,
            own_readers=self.recipe.own_readers,
            repeats=None,
        )

    def _recipe(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Recipe:
        """Return the recipe whose samples (n) are digests (n, 32); those of people without any stand behind."""
        people, contents = [tuple(map(str, names)) for names in facts["people"]], tensors["contents"]
        owners = Column(tensors["codes"], people)
        if len(owners) and not 0 <= int(owners.codes.min()) <= int(owners.codes.max()) < len(people):
            raise ValueError("samples of people who are not named")
        if contents.dtype != torch.uint8 or contents.shape[1:] != (32,):
            raise ValueError("digests that are none")
        silent = sorted(self.units.people_of(self.staying) - owners.distinct())
        ids = _ids(tensors)
        ids = Texts.joined([ids, Texts.of(map(silent_id, silent))])
        owners = Column.joined([owners, Column.of(silent)])
        samples = Samples(
            ids,
            owners,
            torch.cat([contents, torch.zeros(len(silent), 32, dtype=torch.uint8)]),
            torch.zeros(len(ids), dtype=torch.int64),
        )
        self._contents = contents.numpy()
        nobody = self._objective[FEATURES][:0] if self._head else torch.zeros(0, 32, dtype=torch.uint8)
        return RecipeOfUnits(
            samples=samples,
            holdout=(nobody, torch.zeros(0, dtype=torch.int64)),
            **self._kind(),
            holdout_subjects=[self.units.people(unit) for unit in self.units.aside],
            metric=_metric(facts["metric"]),
            weights=self._weights(),
            vectors_for=None if facts["vectors_for"] is None else [*map(self.digest_of, facts["vectors_for"])],
        )

    def _numbered(self, examples: Examples) -> dict[str, Tensor]:
        """Return the number, position and holder of each sample that the recipe made."""
        chosen = torch.from_numpy(places_of(self._contents, examples.inputs.cpu().numpy()))
        real = chosen >= 0
        return {
            "numbers": chosen[real],
            "positions": examples.positions.cpu()[real],
            "holders": examples.people.codes[real],
        }

    def _weights(self) -> Mapping[str, Tensor] | None:
        """Return the weights from elsewhere, of a linear head as a linear layer names them; None: trained here."""
        if not self.imports:
            return None
        if not self._head:
            return {}
        outputs, features = int(self._head["outputs"]), int(self._head["features"])
        flat, size = self._imported[IMPORTED], outputs * features
        bias = {"bias": flat[size:]} if self._head["bias"] else {}
        return {"weight": flat[:size].reshape(outputs, features)} | bias

    def _kind(self) -> dict[str, Any]:
        """Return what the recipe says of its model, as far as this process must know it."""
        head = self._head
        if head is None:
            return {"model": _in_its_world, "loss": _in_its_world, "training": Training(epochs=1)}
        return {
            "model": affine_model(head, self._objective.get(START)),
            "loss": head["loss"],
            "training": linear_training(head),
        }

    def _contents_of_steps(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
        """Return a digest of each sample, (n, 32) uint8: of its features, and of all that steps on these follow from.

        A bound of repeated steps is about the features and the start of the first training. No code of the recipe says
        whether they are those still.
        """
        objective = self._objective
        shared = json.dumps(facts["head"], sort_keys=True).encode() + _bytes_of(objective[START])
        rows = [objective[name] for name in (FEATURES, TARGETS, WEIGHT) if name in objective]
        head, ids = hashlib.sha256(shared).digest(), _ids(tensors)
        parts = (row_bytes(values.contiguous().numpy()) for values in rows)
        digests = row_digests(map(b"".join, zip(repeat(head, len(ids)), *parts, ids.encoded(0, len(ids)), strict=True)))
        return torch.from_numpy(digests)

    def _compute(
        self,
        task: str,
        words: Mapping[str, Any],
        files: Mapping[str, Mapping[str, Tensor]],
        *,
        reads_apart: bool = False,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Have a task carried out by the judge, where there is one, and else beside the recipe's code.

        Raises Refused where that would say a bound: a head may be gone with those who left. Under ``calibrated`` it
        says none: distances are measured by the service.
        """
        if self._head is None and Guarantee(words["guarantee"]) in (Guarantee.PROVED, Guarantee.ESTIMATED):
            what = "Only the recipe's own code can compute with the model that it builds now, which says no bound."
            raise Refused(what, "Retrain it, or build the same model whoever is in the rows.")
        if self._head is None:
            return self._ask_recipe(task, self.staying, words, files, self._aside_units if reads_apart else ())
        about = {"head": self._head, "metric": self._metric, **words}
        measures = reads_apart and (self.brings_holdout or any(self.aside.values()))
        apart = {APART: self._features_apart} if measures else {}
        objective = {} if self._objective_of_judge is self._objective else {OBJECTIVE: self._objective}
        self._objective_of_judge = None  # until it has answered
        try:
            answer = self._ask(self._judge, task, about, {**objective, **apart, **files})
        except Refused:
            self.close()  # another method may be tried next, in a world of its own
            raise
        self._objective_of_judge = self._objective
        return answer

    @cached_property
    def _judge(self) -> World:
        return enter_with_readers(open_judge(int(own_threads()), look_on))

    @cached_property
    def _features_apart(self) -> Mapping[str, Tensor]:
        return self._ask_recipe("apart", self.staying, apart=self._aside_units)[1]

    def _ask_recipe(
        self,
        task: str,
        staying: Collection[Unit],
        words: Mapping[str, Any] | None = None,
        files: Mapping[str, Mapping[str, Tensor]] | None = None,
        apart: Collection[Unit] = (),
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Have a task carried out beside the recipe's code, on the rows of these units."""
        handles = handles_of(self._opened(staying), ROWS)
        handles |= handles_of(self._opened(apart), ASIDE) if apart else {}
        about = self.recipe.order(imports=self.imports) | {"guarantee": Guarantee.NONE.value, "processes": 1}
        try:
            return self._ask(self._part(), task, about | dict(words or {}), files or {}, handles)
        except BaseException as error:
            self._leave_world(error)
            raise

    def _ask(
        self,
        ask: World,
        task: str,
        words: Mapping[str, Any],
        files: Mapping[str, Mapping[str, Tensor]],
        handles: Mapping[str, int] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Have a task carried out by the judge, or by a part of a world. ``handles``: sealed files of rows."""
        method = {"name": self.name, "options": _options(self.method)}
        order = {"task": task, "method": method, "device": str(self.device), **words}
        with ExitStack() as stack:
            given = dict(handles or {})
            for name, tensors in files.items():
                given[name] = stack.enter_context(sealed(_packed(tensors)))
            outcome = ask(PartOrder(order, given, seed=SEED))
        _refuse(outcome.facts, len(words.get("leaving", ())))
        try:
            return dict(outcome.facts), load_tensors(outcome.data) if outcome.data else {}
        except (SafetensorError, ValueError) as error:
            raise _unreadable("answer", judged=handles is None) from error

    def _part(self) -> World:
        """Return a part of the open world that was asked for nothing yet; a template has one world open at a time."""
        if self._world is not None and self._world.left == 0:
            self.close()
        if self._world is None:
            stack = enter_with_readers(ExitStack())
            made = make_world(
                "model",
                self.recipe.code,
                self.orders,
                opened=open_public_files(self.recipe, imports=self.imports),
                closed=self.recipe.closed,
                threads=int(own_threads()),
                progress=look_on,
            )
            self._world = _OpenWorld(stack, stack.enter_context(made), self.orders)
        self._world.left -= 1
        return self._world.ask

    def _leave_world(self, error: BaseException) -> None:
        """Leave a world that ended with an error, and has nothing more to say."""
        if self._world is not None:
            self._world.stack.__exit__(type(error), error, error.__traceback__)
            self._world = None

    def close(self) -> None:
        """End the open world, so that the template can make another."""
        if self._world is not None:
            self._world.stack.close()
            self._world = None

    @property
    def _aside_units(self) -> list[Unit]:
        return [(source, number) for source, numbers in self.aside.items() for number in numbers]

    def _opened(self, units: Collection[Unit]) -> Mapping[str, SealedRows]:
        """Return the rows of these units, which are open until the readers end."""
        key = tuple(sorted(units))
        if key not in self._rows:
            if self.recipe.maps:  # their functions are called in other worlds, and a template makes one at once
                self.close()
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


def _ids(tensors: Mapping[str, Tensor]) -> Texts:
    """Return the ids of the samples that a world described. Raises KeyError, TypeError, ValueError."""
    return Texts.read(*(tensors[name].numpy() for name in IDS))


def silent_id(people: Sequence[str]) -> str:
    """Return the id that stands for people of whose rows no sample was made."""
    return f"no sample of {json.dumps(people)}"


def _bytes_of(values: Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()


def _options(method: Method) -> dict[str, Json]:
    names = [option.name for option in fields(method) if option.init]  # type: ignore[arg-type]
    values = {name: getattr(method, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str | None)}


def _tensors_of(state: State) -> dict[str, Tensor]:
    return {WEIGHTS: state.weights, **{f"{KEPT}{name}": value for name, value in state.tensors.items()}}


def _holders(examples: Examples) -> dict[str, Any]:
    return {"holders": [*examples.people.values]}


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})


def _state(facts: Mapping[str, Any], tensors: Mapping[str, Tensor], *, judged: bool) -> State:
    try:
        return State(
            weights=tensors[WEIGHTS],
            tensors={name.removeprefix(KEPT): value for name, value in tensors.items() if name.startswith(KEPT)},
            facts=facts["facts"],
            vectors={name.removeprefix(VECTOR): value for name, value in tensors.items() if name.startswith(VECTOR)},
        )
    except KeyError as error:
        raise _unreadable("state", judged=judged) from error


def _evidence(facts: Mapping[str, Any]) -> dict[str, Json]:
    evidence = facts.get("evidence")
    return evidence if isinstance(evidence, dict) else {}


def _refuse(facts: Mapping[str, Any], leaving: int) -> None:
    """Raise what was refused in the world: by the method, or because there is nothing for it to work on."""
    match facts:
        case {"returned": str(kind)}:
            what = f"recipe() returned a {kind}, and the method needs samples and their loss."
            raise NoSamples(what, "Return ul.Recipe(...), or choose retrain, shards or late.")
        case {"missing": int(count)}:
            raise VectorsMissing(count, leaving)
        case {"refused": [str(what), str(hint)], "ineffective": bool(ineffective)}:
            raise (Ineffective if ineffective else Refused)(what, hint)


def _unreadable(what: str, *, judged: bool = False) -> Refused:
    """Return the refusal of an answer without what was asked for. ``judged``: no code of the recipe gave it."""
    if judged:
        return Refused(
            f"The process that computes without the recipe's code gave no {what} that can be read. The fault is in "
            "Expunge, and not in the recipe.",
            "Report it with the worker's log; meanwhile choose retrain, shards or late.",
        )
    return Refused(
        f"The recipe's process gave no {what} that can be read.",
        "Let the recipe, and what it imports, change no function of unlearning or expunge.",
    )


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
