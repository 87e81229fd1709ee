"""What a user hands us: a model, samples with the people they belong to, and how to train."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn

from unlearning.holdout import SHARE, held_out
from unlearning.settings import Training
from unlearning.types import Examples, RecipeError, Trajectory

DIGEST = re.compile(r"[0-9a-f]{64}")
LOSSES = ("cross_entropy", "binary_logistic", "squared_error", "squared_hinge")

SampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, ...), targets (n, ...)) -> losses (n,)"""


@runtime_checkable
class PairDataset(Protocol):
    """A map-style dataset: ``len(dataset)`` and ``dataset[i] -> (x, y)``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class Samples:
    """Training samples, each with an id and the person (or people) it belongs to.

    Args:
        ids: n distinct, non-empty strings.
        subjects: n entries, each one subject id or several; stored as tuples.
        inputs: (n, ...) tensor, or a map-style dataset of (x, y).
        targets: (n, ...) tensor; None when ``inputs`` is a dataset.

    Raises:
        RecipeError: duplicate or empty ids, no subject, different lengths, NaN or infinity.
    """

    ids: Sequence[str]
    subjects: Sequence[str | Sequence[str]]
    inputs: Tensor | PairDataset
    targets: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "subjects", tuple(_subjects_of(entry) for entry in self.subjects))
        _check_ids(self.ids)
        if len(self.ids) == 0:
            raise RecipeError("The recipe has no samples.", "Give at least one.")
        self._check_lengths()
        if isinstance(self.inputs, Tensor):
            _check_finite("inputs", self.inputs)
            _check_finite("targets", cast(Tensor, self.targets))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def people(self) -> tuple[tuple[str, ...], ...]:
        """Return the subjects of each sample, n tuples."""
        return cast("tuple[tuple[str, ...], ...]", self.subjects)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return inputs (n, ...) and targets (n, ...). A dataset is read once, in order.

        Raises:
            RecipeError: the dataset's items have different shapes, or hold NaN or infinity.
        """
        if isinstance(self.inputs, Tensor):
            return self.inputs, cast(Tensor, self.targets)
        inputs, targets = _stack(self.inputs)
        _check_finite("inputs", inputs)
        _check_finite("targets", targets)
        return inputs, targets

    def examples(self, people: Sequence[str] | None = None, device: torch.device | str = "cpu") -> Examples:
        """Return all samples, at positions 0..n-1, on ``device``. Default person: the subjects of a sample, joined."""
        inputs, targets = self.tensors()
        names = tuple(people) if people is not None else tuple("+".join(subjects) for subjects in self.people)
        if len(names) != len(self):
            raise RecipeError(f"{len(names)} people are named for {len(self)} samples.", "Name one for each sample.")
        positions = torch.arange(len(self), device=device)
        return Examples(positions, inputs.to(device), targets.to(device), names, self.people)

    def split(self, share: float = SHARE) -> tuple[Samples, tuple[Tensor, Tensor], tuple[tuple[str, ...], ...]]:
        """Keep a share of the people aside, by a hash of their ids: nobody changes sides when the data grow.

        Returns:
            The samples to train on; the holdout's inputs (m, ...) and targets (m, ...); and the holdout's subjects, as
            ``Recipe.holdout_subjects``. ``unlearning.held_out`` decides for each sample.

        Raises:
            RecipeError: one of the two sides would be empty.
        """
        aside = [held_out(people, share) for people in self.people]
        kept = [index for index, out in enumerate(aside) if not out]
        held = [index for index, out in enumerate(aside) if out]
        if not kept or not held:
            empty = "holdout" if not held else "training"
            raise RecipeError(
                f"At a share of {share:g} nobody is left for the {empty}.", "Choose another share, or add people."
            )
        inputs, targets = self.tensors()
        samples = Samples(
            [self.ids[index] for index in kept], [self.people[index] for index in kept], inputs[kept], targets[kept]
        )
        return samples, (inputs[held], targets[held]), tuple(self.people[index] for index in held)

    def _check_lengths(self) -> None:
        lengths = {"ids": len(self.ids), "subjects": len(self.subjects), "inputs": len(self.inputs)}
        if isinstance(self.inputs, Tensor):
            if self.targets is None:
                raise RecipeError("Inputs are a tensor but targets are missing.", "Give targets, one for each sample.")
            lengths["targets"] = len(self.targets)
        elif self.targets is not None:
            raise RecipeError("Inputs are a dataset of (x, y) and targets are given too.", "Leave targets out.")
        if len(set(lengths.values())) > 1:
            raise RecipeError(f"Samples differ in length: {lengths}.", "Give one entry of each for every sample.")


@dataclass(frozen=True)
class Run:
    """What a recipe's own training function is given. It trains ``model`` in place.

    It must depend on these fields alone, and on torch's random state, which is set before the call.

    Args:
        model: the module, in training mode; after a first phase with the weights and buffers that it ended with.
        inputs, targets: the samples of this phase, (n, ...), on the work device.
        phase: its name; a training in one piece has the phase ``all``.
        share: how many times its usual number of passes the function shall make over these samples.
        seed: another for each phase.
        state: what the function returned for the phase before, tensors on the CPU; None in the first.
        progress: call it with a number from 0 to 1 now and then.
        last: whether no phase comes after this one: time for the step size to fall.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    phase: str
    share: float
    seed: int
    state: Any
    progress: Callable[[float], None]
    last: bool = True


class OwnTraining(Training):
    """The ``training`` of a recipe that gives ``train``: only its seed means anything."""


UNSTATED = OwnTraining(epochs=1)


@dataclass(frozen=True)
class Recipe:
    """A complete recipe.

    Args:
        model: builds the module; all its randomness comes from torch's seed, which is set before the call.
        samples: the training samples.
        holdout: inputs and targets that nobody trains on.
        loss: one of ``LOSSES``, or a callable that gives one loss for each sample.
        training: the settings of the built-in training; leave it out where ``train`` is given.
        train: trains a model itself, with any optimiser, schedule and library, in place of ``training``. It returns
            what it needs to go on in a further phase: dicts, lists, tensors, numbers, text; or None.
        seed: of the initialisation and of ``train``.
        weights: for a model trained elsewhere: its whole state_dict, parameters and buffers by name.
        trajectory: what ``Recorder`` wrote during that training.
        holdout_subjects: whose each holdout sample is, as ``Samples.subjects``; None: not said. Nobody in the holdout
            is trained on, so a deletion of somebody who is only there has nothing to forget, and says so.
        public: what the model brings along and nobody who may be deleted is in, by the name of a tensor (or of the
            part that holds it), each with its sha256 digest. A refusal prints the line to paste.

    Raises:
        RecipeError: neither ``training`` nor ``train``, or both; an unknown loss,
            an unusable holdout, a trajectory without weights, a digest that is none.
    """

    model: Callable[[], nn.Module]
    samples: Samples
    holdout: tuple[Tensor, Tensor]
    loss: str | SampleLoss
    training: Training = UNSTATED
    train: Callable[[Run], Any] | None = None
    seed: int = 0
    weights: Mapping[str, Tensor] | None = None
    trajectory: Trajectory | None = field(default=None, repr=False)
    holdout_subjects: Sequence[str | Sequence[str]] | None = field(default=None, repr=False)
    public: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise RecipeError(f"The loss {self.loss!r} is not known.", f"Use a callable or one of {', '.join(LOSSES)}.")
        self._choose_training()
        if isinstance(self.model, nn.Module) or not callable(self.model):
            raise RecipeError(
                f"The model is a {type(self.model).__name__}.", "Give a function that builds the nn.Module."
            )
        inputs, targets = self.holdout
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise RecipeError(
                f"The holdout has {len(inputs)} inputs and {len(targets)} targets.", "Give the same number of both."
            )
        _check_finite("holdout inputs", inputs)
        if self.holdout_subjects is not None:
            object.__setattr__(self, "holdout_subjects", tuple(_subjects_of(each) for each in self.holdout_subjects))
            if len(self.holdout_subjects) != len(inputs):
                what = f"There are {len(self.holdout_subjects)} holdout_subjects for {len(inputs)} holdout samples."
                raise RecipeError(what, "Give one entry for each.")
        if self.trajectory is not None and self.weights is None:
            raise RecipeError("A trajectory is given without weights.", "Give the weights that it ended in.")
        for name, digest in self.public.items():
            if not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
                raise RecipeError(
                    f"public gives {name!r} the digest {digest!r}.",
                    "A digest is 64 hexadecimal digits: register without it, and the refusal prints it.",
                )

    def _choose_training(self) -> None:
        if isinstance(self.training, OwnTraining) == (self.train is None):
            given = "neither training nor train" if self.train is None else "both training and train"
            raise RecipeError(f"The recipe gives {given}.", "Give one of them: settings, or your own function.")
        if self.train is not None:
            object.__setattr__(self, "training", OwnTraining(epochs=1, seed=self.seed))


def holdout_people(recipe: Recipe) -> frozenset[str]:
    """Return everyone whom the recipe names for a holdout sample."""
    return frozenset(name for names in recipe.holdout_subjects or () for name in names)


def _subjects_of(entry: str | Sequence[str]) -> tuple[str, ...]:
    names = (entry,) if isinstance(entry, str) else tuple(sorted(set(entry)))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise RecipeError("A sample has an empty subject.", "Name at least one subject for each sample.")
    return names


def _check_ids(ids: Iterable[str]) -> None:
    """Refuse by position: an id may name a person, and a refusal is kept with the model."""
    seen: set[str] = set()
    for position, identity in enumerate(ids):
        if not isinstance(identity, str) or not identity:
            raise RecipeError(
                f"The sample id at position {position} is not a string or empty.", "Give non-empty strings."
            )
        if identity in seen:
            raise RecipeError(f"The sample id at position {position} occurs twice.", "Give every sample its own id.")
        seen.add(identity)


def _check_finite(what: str, values: Tensor) -> None:
    if not values.dtype.is_floating_point:
        return
    broken = ~torch.isfinite(values.reshape(len(values), -1)).all(dim=1)
    if bool(broken.any()):
        first = int(broken.nonzero()[0])
        raise RecipeError(
            f"{int(broken.sum())} rows of {what} hold NaN or infinity, the first at index {first}.", "Clean the data."
        )


def _stack(dataset: PairDataset) -> tuple[Tensor, Tensor]:
    pairs = [dataset[index] for index in range(len(dataset))]
    try:
        inputs = torch.stack([torch.as_tensor(x) for x, _ in pairs])
        targets = torch.stack([torch.as_tensor(y) for _, y in pairs])
    except (RuntimeError, TypeError, ValueError) as error:
        raise RecipeError(
            "The dataset's items do not stack into tensors.", "Give (x, y) pairs of numbers, all of one shape."
        ) from error
    return inputs, targets
