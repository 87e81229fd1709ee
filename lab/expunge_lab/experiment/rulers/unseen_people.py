"""Membership inference against people who were never trained on, by folds of people.

R2D, section 4.4 and its appendix on the sensitivity of such attacks (Mu and Klabjan, "Rewind-to-Delete: Certified
Machine Unlearning for Nonconvex Functions"): a classifier learns to tell the forgotten from people absent from the
training, and is judged by its AUC on people that it has not seen. Both sides of a fold have the same share of each
class, without which it would tell classes and not membership. A person's samples are all in one fold.

``two_model_features`` gives the attacker two versions: Chen, Zhang, Wang, Backes, Humbert and Zhang, "When Machine
Unlearning Jeopardizes Privacy" (CCS 2021, arXiv 2005.02205), which CNS's table 2 uses. Theirs learns on shadow models;
this one is given labelled people of the real versions, which makes it stronger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from expunge_lab.experiment.attacks import Classifier, auc
from unlearning.model.problem import Problem

FOLDS = 5


@dataclass(frozen=True)
class Side:
    """The forgotten, or the unseen: inputs (n, ...), targets (n, ...), and whose each sample is."""

    inputs: Tensor
    targets: Tensor
    people: Sequence[str]

    def only(self, places: Tensor) -> Side:
        """Return the samples at these places."""
        return Side(self.inputs[places], self.targets[places], [self.people[place] for place in places.tolist()])


Fold: TypeAlias = "tuple[Side, Side]"
"""the forgotten and the unseen of one fold"""


def folds_of(forgotten: Side, unseen: Side, seed: int) -> list[Fold]:
    """Divide the people of both sides into at most ``FOLDS`` folds; each fold has as many samples of both sides.

    Of whole-number targets a fold has as many samples of each class. Matching over all folds together would not do: a
    class that is frequent in the fold that is judged would be rare among the others, and a classifier that learned
    classes would be wrong more often than guessing. Folds without samples are left out.
    """
    generator = torch.Generator().manual_seed(seed)
    count = min(FOLDS, len(set(forgotten.people)), len(set(unseen.people)))
    mine, theirs = (_fold_of(side.people, max(1, count), generator) for side in (forgotten, unseen))
    pairs = (
        matched(
            forgotten.only((mine == fold).nonzero()[:, 0]), unseen.only((theirs == fold).nonzero()[:, 0]), generator
        )
        for fold in range(count)
    )
    return [pair for pair in pairs if len(pair[0].people)]


def matched(forgotten: Side, unseen: Side, generator: torch.Generator) -> Fold:
    """Return as many samples of both sides, drawn at random; of whole-number targets, as many of each class."""
    drawn = [_by_class(side.targets, generator) for side in (forgotten, unseen)]
    shared = sorted(drawn[0].keys() & drawn[1].keys())
    counts = {label: min(len(drawn[0][label]), len(drawn[1][label])) for label in shared}
    places = [[each[label][: counts[label]] for label in shared] for each in drawn]
    mine, theirs = (torch.cat(each).sort().values if each else torch.empty(0, dtype=torch.int64) for each in places)
    return forgotten.only(mine), unseen.only(theirs)


def output_features(problem: Problem, w: Tensor, side: Side) -> Tensor:
    """Return what one model shows of each sample, (n, k + 1) float64: its outputs and its loss."""
    with torch.no_grad():
        outputs = problem.outputs(w.to(problem.dtype), side.inputs)
        losses = problem.losses(outputs, side.targets)
    return torch.cat([outputs.reshape(len(outputs), -1), losses.unsqueeze(1)], dim=1).double().cpu()


def two_model_features(problem: Problem, before: Tensor, after: Tensor, side: Side) -> Tensor:
    """Return what two versions show of each sample, (n, 3k + 3): either one's outputs and loss, and the difference."""
    old, new = output_features(problem, before, side), output_features(problem, after, side)
    return torch.cat([old, new, old - new], dim=1)


def auc_by_folds(folds: Sequence[tuple[Tensor, Tensor]], classifier: Classifier) -> float | None:
    """Return the mean over folds of the AUC of forgotten (n, k) against unseen (n, k) samples; 0.5 is guessing.

    The classifier learns from the other folds. None where there are fewer than two.
    """
    if len(folds) < 2:
        return None
    found = []
    for place, (mine, theirs) in enumerate(folds):
        known = [pair for other, pair in enumerate(folds) if other != place]
        features = torch.cat([pair[0] for pair in known] + [pair[1] for pair in known])
        labels = torch.zeros(len(features))
        labels[: sum(len(pair[0]) for pair in known)] = 1.0
        judged = classifier(features, labels, torch.cat([mine, theirs]))
        found.append(auc(judged[: len(mine)], judged[len(mine) :]))
    return sum(found) / len(found)


def _by_class(targets: Tensor, generator: torch.Generator) -> dict[int, Tensor]:
    """Return the places of each class in random order; real-valued targets are one class."""
    order = torch.randperm(len(targets), generator=generator)
    if targets.dtype.is_floating_point or targets.dim() > 1:
        return {0: order}
    labels = targets.cpu()[order]
    return {label: order[labels == label] for label in set(labels.tolist())}


def _fold_of(people: Sequence[str], folds: int, generator: torch.Generator) -> Tensor:
    """Return the fold of each sample (n,): people are dealt out in random order."""
    names = sorted(set(people))
    dealt = torch.randperm(len(names), generator=generator) % folds
    fold = dict(zip(names, dealt.tolist(), strict=True))
    return torch.tensor([fold[person] for person in people])
