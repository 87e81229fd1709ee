"""What a user hands us: a model, samples with the people they belong to, and how to train."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from numbers import Integral
from os import PathLike
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from unlearning import sources
from unlearning.accounting.ids import spelled
from unlearning.artefact import Artefact
from unlearning.columns import Column, Texts
from unlearning.holdout import SHARE, held_out
from unlearning.index import Index
from unlearning.pack import Pack
from unlearning.settings import Training
from unlearning.sources import PairDataset
from unlearning.types import Examples, RecipeError, SampleRows, Tensors, Trajectory, block_of

DIGEST = re.compile(r"[0-9a-f]{64}")
LOSSES = ("cross_entropy", "binary_logistic", "squared_error", "squared_hinge")

ONE_TENSOR = "inputs must be one tensor: use ul.Pack"
PACKED = (
    "Samples.from_frame(frame, inputs=ul.Pack(...), ...) makes the rows, and pack.decode(x) reads them in the model."
)

SEEDS = 2**31
"""seeds that a training function may be given: numpy takes 32 bits, LightGBM 31"""
PEOPLE = 2**53
"""numbers of people are below this: exact as floats too"""
HELD_BYTES = 2**31
"""of samples that are read into memory once; larger sources are read by blocks, again and again (2 GiB)"""

METRIC_NAMES = ("accuracy", "r2", "auc", "ndcg")

Metric: TypeAlias = Callable[..., float]
"""(outputs (n, ...), targets (n, ...)) -> a number, greater is better"""
HoldoutOf: TypeAlias = Callable[..., tuple[Any, Any]]
"""rows of the people who are kept apart -> inputs (m, ...) and targets (m, ...)"""
SampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, ...), targets (n, ...)) -> losses (n,)"""


@dataclass(frozen=True)
class Samples:
    """Training samples, each with an id and the person (or people) it belongs to.

    Tensors are the simplest source; ``from_parquet``, ``from_numpy``, ``from_dataset`` and ``from_huggingface`` read
    data by blocks, so that they may be larger than memory. Ids and people are columns.

    Args:
        ids: n distinct, non-empty strings. Ids are compared by their NFC form.
        subjects: n entries, each one subject id or several; stored as sorted tuples.
        inputs: (n, ...) tensor, a map-style dataset of (x, y), or a source (``unlearning.sources``).
        targets: (n, ...) tensor; None when ``inputs`` is no tensor.
        missing: whether an input may be NaN, for what is not known; a model of trees takes it.
        weight: (n,) numbers of 0 or more, which multiply the samples' losses; None: 1 each. A weight is data of its
            sample: it is digested with it, and must not change when another person leaves.

    Raises:
        RecipeError: duplicate or empty ids, no subject, an id with white space at an end or an invisible character,
            different lengths, NaN or infinity, a weight below 0.
    """

    ids: Sequence[str]
    subjects: Sequence[str | Sequence[str]]
    inputs: Tensor | PairDataset | SampleRows
    targets: Tensor | None = None
    missing: bool = False
    weight: Tensor | None = None
    rows: SampleRows = field(init=False, repr=False)
    unweighted: SampleRows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _ids(self.ids))
        object.__setattr__(self, "subjects", people_of(self.subjects))
        if len(self.ids) == 0:
            raise RecipeError("The recipe has no samples.", "Give at least one.")
        object.__setattr__(self, "unweighted", self._rows())
        lengths = {"ids": len(self.ids), "subjects": len(self.subjects), "inputs": len(self.inputs)}
        if self.targets is not None:
            lengths["targets"] = len(self.targets)
        if self.weight is not None:
            object.__setattr__(self, "weight", torch.as_tensor(self.weight).double())
            lengths["weight"] = len(self.weight)
        if len(set(lengths.values())) > 1:
            raise RecipeError(f"Samples differ in length: {lengths}.", "Give one entry of each for every sample.")
        if isinstance(self.unweighted, Tensors):
            self.check_inputs(self.unweighted.inputs)
            _check_finite("targets", self.unweighted.targets)
        object.__setattr__(self, "rows", self._weighted())

    @classmethod
    def from_parquet(
        cls,
        paths: str | PathLike[str] | Sequence[str | PathLike[str]],
        *,
        id: str,
        person: str,
        target: str,
        features: Sequence[str] | str,
        weight: str | None = None,
    ) -> Samples:
        """Read samples from columns of Parquet files, one after the other. Needs ``pip install "expunge[parquet]"``.

        Args:
            paths: one file or several; all have these columns.
            id: the column of distinct sample ids, text or whole numbers.
            person: the column of people, text, whole numbers, or lists of texts.
            target: the column of targets; whole numbers become int64, others keep their type.
            features: the columns of numbers that make an input (features,), or one column of lists of equal length.
                An input is float64 where a column needs it (float64, int32, int64), else float32.
            weight: the column of weights, which are read whole.

        Raises:
            RecipeError: a column is missing, an id or a weight is missing, a row group is too large to be read at once.
        """
        rows = sources.ParquetRows(sources.paths_of(paths), features, target)
        ids, people = sources.names_in(rows.tables((id, person)), id, person)
        return cls(ids, cast("Sequence[str]", people), rows, weight=sources.weights_in(rows, weight))

    @classmethod
    def from_frame(
        cls, frame: Any, *, id: str, person: str, target: str, inputs: Pack | Sequence[str], weight: str | None = None
    ) -> Samples:
        """Read samples from a frame of pandas or Polars, an Arrow table, or a Parquet file by its path, at once.

        Needs ``pip install "expunge[parquet]"``.

        Args:
            frame: has the columns that the others name.
            id, person, target: as in ``from_parquet``.
            inputs: a ``Pack`` of the rows; or columns of numbers, as ``features`` of ``from_parquet``.
            weight: the column of weights.

        Raises:
            RecipeError: a column is missing, or does not hold what is asked of it.
        """
        table = sources.arrow(frame)
        columns = [*inputs.fields] if isinstance(inputs, Pack) else [*inputs]
        wanted = [id, person, target, *columns, *([] if weight is None else [weight])]
        missing = sorted(set(wanted) - set(table.column_names))
        if missing:
            raise RecipeError(f"The frame lacks the columns {', '.join(missing)}.", "Name columns that it has.")
        ids, people = sources.names_in(iter([table]), id, person)
        x = (
            inputs.encode(table)
            if isinstance(inputs, Pack)
            else sources.numbers(table, columns, target)[0].contiguous()
        )
        heavy = None if weight is None else sources.numbers_of(table, weight)
        return cls(ids, cast("Sequence[str]", people), x, sources.numbers_of(table, target), weight=heavy)

    @classmethod
    def from_numpy(
        cls,
        inputs: sources.Array,
        targets: sources.Array,
        *,
        ids: Sequence[str],
        people: Sequence[str | Sequence[str]],
        weight: sources.Array | None = None,
    ) -> Samples:
        """Read samples from arrays (n, ...), or from ``.npy`` files of them, which are mapped and never read whole.

        The weights (n,) are read at once.
        """
        rows = sources.NumpyRows(sources.mapped(inputs), sources.mapped(targets))
        heavy = None if weight is None else torch.tensor(sources.mapped(weight), dtype=torch.float64)
        return cls(ids, people, rows, weight=heavy)

    @classmethod
    def from_dataset(
        cls,
        dataset: PairDataset,
        *,
        ids: Sequence[str],
        people: Sequence[str | Sequence[str]],
        workers: int = 2,
        weight: Tensor | None = None,
    ) -> Samples:
        """Read samples from a map-style dataset of (x, y), by blocks, with ``workers`` processes (0: this one)."""
        return cls(ids, people, sources.DatasetRows(dataset, workers), weight=weight)

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        id: str,
        person: str,
        target: str,
        features: Sequence[str] | str,
        weight: str | None = None,
    ) -> Samples:
        """Read samples from columns of a Hugging Face ``datasets.Dataset``; the columns are those of ``from_parquet``.

        Needs ``pip install "expunge[huggingface]"``.
        """
        rows = sources.ArrowRows(dataset.with_format("arrow"), features, target)
        ids, people = sources.names_in(rows.tables((id, person)), id, person)
        return cls(ids, cast("Sequence[str]", people), rows, weight=sources.weights_in(rows, weight))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> Texts:
        """Return the ids of the samples as a column."""
        return cast(Texts, self.ids)

    @property
    def people(self) -> Column[tuple[str, ...]]:
        """Return the subjects of each sample, n tuples."""
        return cast("Column[tuple[str, ...]]", self.subjects)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs (m, ...) and targets (m, ...) in order, by blocks, whether they are in memory or not.

        Raises:
            RecipeError: rows have different shapes, or hold NaN or infinity.
        """
        start = 0
        for inputs, targets in self.rows.read(torch.split(torch.arange(len(self)), block_of(self.rows))):
            if not isinstance(self.rows, Tensors):  # those were checked when they were given
                self.check_inputs(inputs, start)
                _check_finite("targets", targets, start)
            yield inputs, targets
            start += len(inputs)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return inputs (n, ...) and targets (n, ...), read once, in order. Raises RecipeError as ``blocks`` does."""
        return next(iter(self.held(None).read([torch.arange(len(self))])))

    def unweighted_targets(self) -> Tensor:
        """Return the targets (n, ...) without the samples' weights, read once, in order."""
        return next(iter(self.unweighted.read([torch.arange(len(self))])))[1]

    def held(self, most: int | None = HELD_BYTES, device: torch.device | str = "cpu") -> SampleRows:
        """Return the rows as tensors on ``device`` where they take at most ``most`` bytes (None: however many).

        Larger sources are returned as they are, to be read by blocks. Tensors are in memory already. Raises RecipeError
        as ``blocks`` does.
        """
        if isinstance(self.rows, Tensors):
            return Tensors(self.rows.inputs.to(device), self.rows.targets.to(device))
        if most is not None and len(self) * self.rows.row_bytes > most:
            return self.rows
        blocks = self.blocks()
        first = next(blocks)
        whole = tuple(each.new_empty(len(self), *each.shape[1:]) for each in first)
        start = 0
        for block in chain([first], blocks):
            for target, part in zip(whole, block, strict=True):
                if part.shape[1:] != target.shape[1:] or part.dtype != target.dtype:
                    raise RecipeError("The dataset's items do not stack into tensors.", sources.ONE_SHAPE)
                target[start : start + len(part)] = part
            start += len(block[0])
        return Tensors(whole[0].to(device), whole[1].to(device))

    def examples(
        self, people: Iterable[str] | None = None, device: torch.device | str = "cpu", most: int | None = HELD_BYTES
    ) -> Examples:
        """Return all samples, at positions 0..n-1, on ``device``. Default person: the subjects of a sample, joined.

        Sources of more than ``most`` bytes are read by blocks.
        """
        names = self.people.map("+".join) if people is None else Column.of(people)
        if len(names) != len(self):
            raise RecipeError(f"{len(names)} people are named for {len(self)} samples.", "Name one for each sample.")
        return Examples(torch.arange(len(self), device=device), self.held(most, device), names, self.people)

    def split(self, share: float = SHARE) -> tuple[Samples, tuple[Tensor, Tensor], tuple[tuple[str, ...], ...]]:
        """Keep a share of the people aside, by a hash of their ids: no person changes sides when the data grow.

        Returns:
            The samples to train on; the holdout's inputs (m, ...) and targets (m, ...); and the holdout's subjects, as
            ``Recipe.holdout_subjects``. ``unlearning.held_out`` decides for each sample.

        Raises:
            RecipeError: one of the two sides would be empty.
        """
        aside = self.people.where(lambda people: held_out(people, share))
        kept, held = (~aside).nonzero().squeeze(1), aside.nonzero().squeeze(1)
        if not len(kept) or not len(held):
            empty = "holdout" if not len(held) else "training"
            raise RecipeError(
                f"At a share of {share:g} no person is left for the {empty}.", "Choose another share, or add people."
            )
        return self.take(kept), next(iter(self.unweighted.read([held]))), tuple(self.people.take(held))

    def take(self, rows: Tensor) -> Samples:
        """Return these rows (m,) int64, in this order. Raises RecipeError where there are none."""
        names, people = self.names.take(rows), cast("Any", self.people.take(rows).compact())
        weight, held = None if self.weight is None else self.weight[rows], self.unweighted
        if isinstance(held, Tensors):
            return Samples(names, people, held.inputs[rows], held.targets[rows], missing=self.missing, weight=weight)
        return Samples(names, people, sources.ChosenRows(held, rows), missing=self.missing, weight=weight)

    def check_inputs(self, inputs: Tensor, start: int = 0, *, what: str = "inputs") -> None:
        """Refuse inputs with infinity, or with NaN where no value may be missing. Raises RecipeError."""
        _check_finite(what, inputs.masked_fill(inputs.isnan(), 0) if self.missing else inputs, start)

    def _weighted(self) -> SampleRows:
        if self.weight is None:
            return self.unweighted
        _check_finite("weight", self.weight)
        if self.weight.dim() != 1 or bool((self.weight < 0).any()) or not bool(self.weight.any()):
            raise RecipeError(
                f"The weights have shape {tuple(self.weight.shape)}, the least is {float(self.weight.min()):g} and the "
                f"largest {float(self.weight.max()):g}.",
                "Give one number of 0 or more for each sample, and not 0 for all.",
            )
        if isinstance(self.unweighted, Tensors):
            targets = sources.weighted(self.unweighted.targets, self.weight.to(self.unweighted.targets.device))
            return Tensors(self.unweighted.inputs, targets)
        return sources.WeightedRows(self.unweighted, self.weight)

    def _rows(self) -> SampleRows:
        if isinstance(self.inputs, Tensor):
            if self.targets is None:
                raise RecipeError("Inputs are a tensor but targets are missing.", "Give targets, one for each sample.")
            return Tensors(self.inputs, self.targets)
        mixed = isinstance(self.inputs, Mapping | list | np.ndarray) or hasattr(self.inputs, "columns")
        if mixed or not isinstance(self.inputs, SampleRows | PairDataset):
            raise RecipeError(f"The inputs are a {type(self.inputs).__name__}; {ONE_TENSOR}.", PACKED)
        if self.targets is not None:
            raise RecipeError("Inputs are a dataset of (x, y) and targets are given too.", "Leave targets out.")
        rows = self.inputs if isinstance(self.inputs, SampleRows) else sources.DatasetRows(self.inputs, workers=0)
        chosen = isinstance(rows, sources.SteadyRows | sources.ChosenRows)  # some of rows that are compared already
        return rows if chosen else sources.SteadyRows(rows)


@dataclass(frozen=True)
class Run:
    """What a recipe's own training function is given. It trains ``model`` in place, or returns an artefact's bytes.

    It must depend on these fields alone, and on the random states of torch, numpy and Python, which are set before the
    call.

    Args:
        model: the module, in training mode; after a first phase with the weights and buffers that it ended with.
        inputs, targets: the samples of this phase, (n, ...), on the work device.
        phase: its name; a training in one piece has the phase ``all``.
        share: how many times its usual number of passes the function shall make over these samples.
        seed: another for each phase, below 2^31: numpy and most libraries take no more.
        state: what the function returned for the phase before, tensors on the CPU; None in the first.
        progress: call it with a number from 0 to 1 now and then.
        people: the person of each sample, (n,) int64 from 0 on, on the work device: by a keyed hash of the person,
            the same in each phase. A sample of several people has the largest of their numbers.
        last: whether no phase comes after this one: time for the step size to fall.
        weights: what multiplies each sample's loss, (n,) float64, where the recipe's samples have a weight.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    phase: str
    share: float
    seed: int
    state: Any
    progress: Callable[[float], None]
    people: Tensor
    last: bool = True
    weights: Tensor | None = None

    def index(self, numbers: Tensor) -> Tensor:
        """Return the row (n,) int64 of each person's number in the model's ``Index``, which gives rows to new people.

        ``numbers`` (n,) are those of ``person_numbers``, as the samples carry them. Rows follow the rank among the
        people of this phase; those of earlier phases keep theirs.

        Raises:
            RecipeError: the model has no ``Index`` or several, or its room is used up.
        """
        found = [each for each in self.model.modules() if isinstance(each, Index)]
        if len(found) != 1:
            raise RecipeError(f"The model has {len(found)} parts ul.Index.", "Give it one, and ask it by run.index.")
        found[0].add(numbers)
        rows: Tensor = found[0](numbers)
        return rows

    def validation(self, share: float) -> Tensor:
        """Return a mask (n,) bool of the samples to validate with: those of about ``share`` of the people.

        By their numbers, so that no person changes sides between phases, or when others leave. A sample of
        several people is among them only if all of its people are. Stop by these samples, never by the holdout:
        the people there learn that no model was trained on them. There may be none, where few people are left.

        Raises:
            RecipeError: ``share`` is outside 0 to 1.
        """
        if not 0.0 <= share <= 1.0:
            raise RecipeError(f"share is {share!r}.", "It must be between 0 and 1.")
        return self.people < round(share * PEOPLE)


class OwnTraining(Training):
    """The ``training`` of a recipe that gives ``train``: only its seed means anything."""


UNSTATED = OwnTraining(epochs=1)


@dataclass(frozen=True)
class Recipe:
    """A complete recipe.

    Args:
        model: builds the module; all its randomness comes from torch's seed, which is set before the call. An
            ``Artefact`` is a model of bytes, which ``train`` returns.
        samples: the training samples.
        holdout: inputs and targets that no model is trained on; of a recipe with rows the function that makes them of
            the rows kept apart. It is called once the model is out.
        loss: one of ``LOSSES``, or a callable that gives one loss for each sample.
        training: the settings of the built-in training; leave it out where ``train`` is given.
        metric: what the holdout is measured by: "accuracy", "r2", "auc", "ndcg", or a callable (outputs (n, ...),
            targets (n, ...)) -> a number, greater is better. Left out: accuracy for the named losses of classes, r2 for
            squared_error; for a callable loss nothing is measured, and no update is withheld for its accuracy.
        train: trains a model itself, with any optimiser, schedule and library, in place of ``training``. It returns
            what it needs to go on in a further phase: dicts, lists, tensors, numbers, text; or None.
        seed: of the initialisation and of ``train``.
        weights: for a model trained elsewhere: its whole state_dict, parameters and buffers by name.
        trajectory: what ``Recorder`` wrote during that training.
        holdout_subjects: the people of each holdout sample, as ``Samples.subjects``; None: not said. No person of it
            is trained on, so deleting a holdout person changes no model, and says so.
        holdout_groups: whole numbers (n,), the query of each holdout row: ``ndcg`` ranks the rows of each by one score
            a row, and a callable metric gets them as its third argument.
        public: what the model brings along without any deletable person in it, by the name of a tensor (or of the
            part that holds it), each with its sha256 digest. A refusal prints the line to paste.
        vectors_for: the people that ``recollection`` keeps vectors of; None: all. A person not among them is
            forgotten by the policy's fallback, a retraining.

    Raises:
        RecipeError: neither ``training`` nor ``train``, or both; an unknown loss,
            an unusable holdout, a trajectory without weights, a digest that is none.
    """

    model: Callable[[], nn.Module]
    samples: Samples
    holdout: tuple[Tensor, Tensor] | HoldoutOf
    loss: str | SampleLoss
    training: Training = UNSTATED
    train: Callable[[Run], Any] | None = None
    seed: int = 0
    weights: Mapping[str, Tensor] | None = None
    trajectory: Trajectory | None = field(default=None, repr=False)
    holdout_subjects: Sequence[str | Sequence[str]] | None = field(default=None, repr=False)
    public: Mapping[str, str] = field(default_factory=dict)
    vectors_for: Iterable[str] | None = field(default=None, repr=False)
    metric: str | Metric | None = None
    holdout_groups: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise RecipeError(f"The loss {self.loss!r} is not known.", f"Use a callable or one of {', '.join(LOSSES)}.")
        if isinstance(self.metric, str) and self.metric not in METRIC_NAMES:
            hint = f"Use a callable or one of {', '.join(METRIC_NAMES)}."
            raise RecipeError(f"The metric {self.metric!r} is not known.", hint)
        self._choose_training()
        if isinstance(self.model, nn.Module) or not callable(self.model):
            raise RecipeError(
                f"The model is a {type(self.model).__name__}.", "Give a function that builds the nn.Module."
            )
        self._require_holdout()
        if self.trajectory is not None and self.weights is None:
            raise RecipeError("A trajectory is given without weights.", "Give the weights that it ended in.")
        if self.vectors_for is not None:
            chosen = frozenset(_spelled("One of vectors_for", each) for each in self.vectors_for)
            object.__setattr__(self, "vectors_for", chosen)
        for name, digest in self.public.items():
            if not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
                raise RecipeError(
                    f"public gives {name!r} the digest {digest!r}.",
                    "A digest is 64 hexadecimal digits: register without it, and the refusal prints it.",
                )

    @property
    def holdout_tensors(self) -> tuple[Tensor, Tensor]:
        """The holdout's inputs (m, ...) and targets (m, ...); m is 0 where it is a function of rows."""
        if isinstance(self.holdout, tuple):
            return self.holdout
        inputs, targets = next(iter(self.samples.unweighted.read([torch.arange(1)])))
        return inputs[:0], targets[:0]

    def _require_holdout(self) -> None:
        if callable(self.holdout):
            if self.holdout_subjects is not None or self.holdout_groups is not None:
                what = "The holdout is a function of rows, which name its people."
                raise RecipeError(what, "Leave holdout_subjects and holdout_groups out.")
            return
        inputs, targets = self.holdout
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            given = f"a {type(inputs).__name__} and a {type(targets).__name__}"
            raise RecipeError(f"The holdout is {given}; {ONE_TENSOR}.", PACKED)
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise RecipeError(
                f"The holdout has {len(inputs)} inputs and {len(targets)} targets.", "Give the same number of both."
            )
        self.samples.check_inputs(inputs, what="holdout inputs")
        if self.holdout_subjects is not None:
            object.__setattr__(self, "holdout_subjects", tuple(_subjects_of(each) for each in self.holdout_subjects))
            if len(self.holdout_subjects) != len(inputs):
                what = f"There are {len(self.holdout_subjects)} holdout_subjects for {len(inputs)} holdout samples."
                raise RecipeError(what, "Give one entry for each.")

        if self.holdout_groups is not None:
            self._require_groups(self.holdout_groups, len(inputs))

    def _require_groups(self, groups: Tensor, count: int) -> None:
        if not isinstance(groups, Tensor) or groups.shape != (count,) or groups.is_floating_point():
            raise RecipeError(
                f"holdout_groups are {type(groups).__name__} {tuple(getattr(groups, 'shape', ()))}.",
                f"Give a tensor of whole numbers ({count},), the query of each holdout row.",
            )
        if self.metric != "ndcg" and not callable(self.metric):
            raise RecipeError(f"The metric {self.metric!r} takes no holdout_groups.", "Use ndcg or a callable.")

    def _choose_training(self) -> None:
        if isinstance(self.training, OwnTraining) == (self.train is None):
            given = "neither training nor train" if self.train is None else "both training and train"
            raise RecipeError(f"The recipe gives {given}.", "Give one of them: settings, or your own function.")
        if isinstance(self.model, Artefact) and (self.train is None or self.weights is not None):
            raise RecipeError("The model is an Artefact.", "Give train, which returns its bytes, and no weights.")
        if self.train is not None:
            object.__setattr__(self, "training", OwnTraining(epochs=1, seed=self.seed))


UNNAMED_HOLDOUT = (
    "The recipe gives no holdout_subjects: of a person in the test rows alone, a letter can only say that the rows' "
    "people are not known. Name the people of each test row."
)


def holdout_people(recipe: Recipe) -> frozenset[str]:
    """Return all people that the recipe names for a holdout sample."""
    return frozenset(name for names in recipe.holdout_subjects or () for name in names)


def everyone(recipe: Recipe) -> frozenset[str]:
    """Return all people that the recipe names, for a sample or for the holdout."""
    return holdout_people(recipe) | {name for names in recipe.samples.people.distinct() for name in names}


def on_both_sides(recipe: Recipe) -> frozenset[str]:
    """Return all people that the recipe names for a holdout sample and for a sample to train on."""
    held_out = holdout_people(recipe)
    return frozenset(name for names in recipe.samples.people.distinct() for name in names if name in held_out)


def _subjects_of(entry: str | Sequence[str]) -> tuple[str, ...]:
    names = (entry,) if isinstance(entry, str) else tuple(entry)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise RecipeError("A sample has an empty subject.", "Name at least one subject for each sample.")
    return tuple(sorted({_spelled("A subject", name) for name in names}))


def _spelled(what: str, name: str) -> str:
    """Return the id as it is compared (``unlearning.accounting.ids``). Raises RecipeError, which does not repeat it."""
    try:
        return spelled(name)
    except ValueError as error:
        raise RecipeError(f"{what} cannot be named. {error}", "Clean the ids: requests name them too.") from None


def people_of(subjects: Sequence[str | Sequence[str]]) -> Column[tuple[str, ...]]:
    """Return the column of each sample's people. Each different entry is looked at once."""
    if not isinstance(subjects, Column):
        subjects = Column.of(each if isinstance(each, str) else _several(each) for each in subjects)
    return subjects.map(_subjects_of)


_AS_TEXTS = "Give texts, as in [str(number) for number in people]; a request names the same text."
_READ_AS_TEXTS = (
    "One empty cell makes floats of a column of whole numbers, and 17.0 is nobody's id. Read the column as text "
    "(pandas: dtype=str) and leave the rows without a person out, or give the table to Samples.from_frame."
)


def _several(entry: Any) -> tuple[str, ...]:
    if not isinstance(entry, Iterable):
        what = f"A sample's person is of the type {type(entry).__name__}, and a person's id is a text."
        raise RecipeError(what, _AS_TEXTS if isinstance(entry, Integral) else _READ_AS_TEXTS)
    return tuple(entry)


def _ids(ids: Iterable[str]) -> Texts:
    """Return the column of ids. Refuse by position: an id may name a person, and a refusal is kept with the model."""
    found = ids if isinstance(ids, Texts) else Texts.of(each if isinstance(each, str) else "" for each in ids)
    empty = found.empty()
    if empty is not None:
        raise RecipeError(f"The sample id at position {empty} is not a string or empty.", "Give non-empty strings.")
    if not found.plain():
        found = Texts.of(_spelled(f"The sample at position {place}", each) for place, each in enumerate(found))
    again = found.repeated()
    if again is not None:
        raise RecipeError(f"The sample id at position {again} occurs twice.", "Give every sample its own id.")
    return found


def _check_finite(what: str, values: Tensor, start: int = 0) -> None:
    """Refuse rows with NaN or infinity; the first row's index is ``start``."""
    if not values.dtype.is_floating_point or bool(torch.isfinite(values.sum())):
        return  # one sum shows it for all rows; a sum that overflows is looked at row by row
    broken = ~torch.isfinite(values.reshape(len(values), -1)).all(dim=1)
    if bool(broken.any()):
        first = start + int(broken.nonzero()[0])
        raise RecipeError(
            f"{int(broken.sum())} rows of {what} hold NaN or infinity, the first at index {first}.",
            "Clean the data, or keep missing inputs: Samples(missing=True) where the training takes NaN, else ul.Pack.",
        )
