"""What a user hands us: a model, samples with the people they belong to, and how to train."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from numbers import Integral
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from unlearning.accounting.ids import spelled
from unlearning.artefact import Artefact
from unlearning.columns import Column, Texts
from unlearning.settings import Training
from unlearning.types import Examples, RecipeError, Tensors, Trajectory

LOSSES = ("cross_entropy", "binary_logistic", "squared_error", "squared_hinge")

ONE_TENSOR = "inputs must be one tensor: use ul.Pack"
PACKED = "`pack.encode(rows.pandas())` makes one, and pack.decode(x) reads it in the model."

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

    A recipe makes them by ``Rows.samples``, which knows whose rows they are of. Ids and people are columns.

    Args:
        ids: n distinct, non-empty strings. Ids are compared by their NFC form.
        subjects: n entries, each one subject id or several; stored as sorted tuples.
        inputs, targets: tensors (n, ...).
        missing: whether an input may be NaN, for what is not known; a model of trees takes it.
        weight: (n,) numbers of 0 or more, which multiply the samples' losses; None: 1 each. A weight is data of its
            sample: it is digested with it, and must not change when another person leaves.

    Raises:
        RecipeError: duplicate or empty ids, no subject, an id with white space at an end or an invisible character,
            different lengths, NaN or infinity, a weight below 0.
    """

    ids: Sequence[str]
    subjects: Sequence[str | Sequence[str]]
    inputs: Tensor
    targets: Tensor
    missing: bool = False
    weight: Tensor | None = None
    rows: Tensors = field(init=False, repr=False)
    """inputs, and targets with their weights in front where there are any"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _ids(self.ids))
        object.__setattr__(self, "subjects", people_of(self.subjects))
        if len(self.ids) == 0:
            raise RecipeError("The recipe has no samples.", "Give at least one.")
        if not isinstance(self.inputs, Tensor) or not isinstance(self.targets, Tensor):
            given = f"a {type(self.inputs).__name__} and a {type(self.targets).__name__}"
            raise RecipeError(f"Inputs and targets are {given}; {ONE_TENSOR}.", PACKED)
        lengths = {"ids": len(self.ids), "subjects": len(self.subjects)}
        lengths |= {"inputs": len(self.inputs), "targets": len(self.targets)}
        if self.weight is not None:
            object.__setattr__(self, "weight", torch.as_tensor(self.weight).double())
            lengths["weight"] = len(self.weight)
        if len(set(lengths.values())) > 1:
            raise RecipeError(f"Samples differ in length: {lengths}.", "Give one entry of each for every sample.")
        self.check_inputs(self.inputs)
        _check_finite("targets", self.targets)
        object.__setattr__(self, "rows", self._weighted())

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

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return inputs (n, ...) and targets (n, ...), with the samples' weights where they have any."""
        return self.rows.inputs, self.rows.targets

    def held(self, device: torch.device | str = "cpu") -> Tensors:
        """Return the rows on ``device``."""
        return Tensors(self.rows.inputs.to(device), self.rows.targets.to(device))

    def examples(self, people: Iterable[str] | None = None, device: torch.device | str = "cpu") -> Examples:
        """Return all samples, at positions 0..n-1, on ``device``. Default person: the subjects of a sample, joined."""
        names = self.people.map("+".join) if people is None else Column.of(people)
        if len(names) != len(self):
            raise RecipeError(f"{len(names)} people are named for {len(self)} samples.", "Name one for each sample.")
        return Examples(torch.arange(len(self), device=device), self.held(device), names, self.people)

    def take(self, rows: Tensor) -> Samples:
        """Return these rows (m,) int64, in this order. Raises RecipeError where there are none."""
        names, people = self.names.take(rows), cast("Any", self.people.take(rows).compact())
        weight = None if self.weight is None else self.weight[rows]
        return Samples(names, people, self.inputs[rows], self.targets[rows], missing=self.missing, weight=weight)

    def check_inputs(self, inputs: Tensor, start: int = 0, *, what: str = "inputs") -> None:
        """Refuse inputs with infinity, or with NaN where no value may be missing. Raises RecipeError."""
        _check_finite(what, inputs.masked_fill(inputs.isnan(), 0) if self.missing else inputs, start)

    def _weighted(self) -> Tensors:
        if self.weight is None:
            return Tensors(self.inputs, self.targets)
        _check_finite("weight", self.weight)
        if self.weight.dim() != 1 or bool((self.weight < 0).any()) or not bool(self.weight.any()):
            raise RecipeError(
                f"The weights have shape {tuple(self.weight.shape)}, the least is {float(self.weight.min()):g} and the "
                f"largest {float(self.weight.max()):g}.",
                "Give one number of 0 or more for each sample, and not 0 for all.",
            )
        return Tensors(self.inputs, weighted(self.targets, self.weight.to(self.targets.device)))


def weighted(targets: Tensor, weight: Tensor) -> Tensor:
    """Return targets (n, ...) with their weights (n,) in front, (n, 1 + k) float64; ``Problem.apart`` undoes it.

    What carries a sample from the recipe to its loss carries inputs and targets: so its weight is digested, compared,
    stored and taken away with it.
    """
    return torch.cat([weight.unsqueeze(1), targets.reshape(len(targets), -1).double()], dim=1)


UNSTATED = Training(epochs=1)
"""the training of a recipe that gives none"""


@dataclass(frozen=True)
class Recipe:
    """A complete recipe.

    Args:
        model: builds the module; all its randomness comes from torch's seed, which is set before the call. An
            ``Artefact`` is a model of bytes, which a world trains.
        samples: the training samples.
        holdout: inputs and targets that no model is trained on; of a recipe with rows the function that makes them of
            the rows kept apart. It is called once the model is out.
        loss: one of ``LOSSES``, or a callable that gives one loss for each sample.
        training: the settings of the built-in training.
        metric: what the holdout is measured by: "accuracy", "r2", "auc", "ndcg", or a callable (outputs (n, ...),
            targets (n, ...)) -> a number, greater is better. Left out: accuracy for the named losses of classes, r2 for
            squared_error; for a callable loss nothing is measured, and no update is withheld for its accuracy.
        weights: for a model trained elsewhere: its whole state_dict, parameters and buffers by name.
        trajectory: what ``Recorder`` wrote during that training; positions are those of the samples.
        holdout_subjects: the people of each holdout sample, as ``Samples.subjects``; None: not said. No person of it
            is trained on, so deleting a holdout person changes no model, and says so.
        holdout_groups: whole numbers (n,), the query of each holdout row: ``ndcg`` ranks the rows of each by one score
            a row, and a callable metric gets them as its third argument.
        train: refused: a recipe that trains by itself returns ``ul.Published``.
        vectors_for: the people, as requests name them, that ``recollection`` keeps vectors of; None: all. A person not
            among them is forgotten by the policy's fallback, a retraining.
        publish: of a recipe with rows: what is published with the model, by name: fitted transformers of scikit-learn,
            or objects of plain values. ``unlearning.fitted`` writes them as JSON and arrays.

    Raises:
        RecipeError: no training, an unknown loss, an unusable holdout, a trajectory without weights.
    """

    model: Callable[[], nn.Module]
    samples: Samples
    holdout: tuple[Tensor, Tensor] | HoldoutOf
    loss: str | SampleLoss
    training: Training = UNSTATED
    weights: Mapping[str, Tensor] | None = None
    trajectory: Trajectory | None = field(default=None, repr=False)
    holdout_subjects: Sequence[str | Sequence[str]] | None = field(default=None, repr=False)
    vectors_for: Iterable[str] | None = field(default=None, repr=False)
    metric: str | Metric | None = None
    holdout_groups: Tensor | None = field(default=None, repr=False)
    train: InitVar[object] = None
    publish: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self, train: object) -> None:
        if train is not None:
            raise RecipeError("The recipe gives train.", "Train in the recipe itself, and return ul.Published.")
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise RecipeError(f"The loss {self.loss!r} is not known.", f"Use a callable or one of {', '.join(LOSSES)}.")
        if isinstance(self.metric, str) and self.metric not in METRIC_NAMES:
            hint = f"Use a callable or one of {', '.join(METRIC_NAMES)}."
            raise RecipeError(f"The metric {self.metric!r} is not known.", hint)
        self._require_training()
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

    @property
    def holdout_tensors(self) -> tuple[Tensor, Tensor]:
        """The holdout's inputs (m, ...) and targets (m, ...); m is 0 where it is a function of rows."""
        if isinstance(self.holdout, tuple):
            return self.holdout
        return self.samples.inputs[:0], self.samples.targets[:0]

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

    def _require_training(self) -> None:
        if isinstance(self.model, Artefact):
            if self.weights is not None:
                raise RecipeError("The model is an Artefact, which takes no weights.", "Leave weights out.")
        elif self.training is UNSTATED:
            what = "The recipe gives no training."
            raise RecipeError(what, "Give settings, training=ul.Training(...); or train yourself: ul.Published.")


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
    "(pandas: dtype=str) and leave the rows without a person out."
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
