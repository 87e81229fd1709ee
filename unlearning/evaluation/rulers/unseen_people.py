"""Membership inference against people who were never trained on, by folds of people.

R2D, section 4.4 and its appendix on the sensitivity of such attacks (Mu and Klabjan, "Rewind-to-Delete: Certified
Machine Unlearning for Nonconvex Functions"): a classifier learns to tell the forgotten from people absent from the
training, and is judged by its AUC on people that it has not seen. Both sides have the same share of each class, without
which it would tell classes and not membership. A person's samples are all in one fold.

``two_model_features`` gives the attacker two versions: Chen, Zhang, Wang, Backes, Humbert and Zhang, "When Machine
Unlearning Jeopardizes Privacy" (CCS 2021, arXiv 2005.02205), which CNS's table 2 uses. Theirs learns on shadow models;
this one is given labelled people of the real versions, which makes it stronger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearning.evaluation.attacks import Classifier, auc
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


def matched(forgotten: Side, unseen: Side, seed: int) -> tuple[Side, Side]:
    """Return as many samples of both sides, drawn at random; of whole-number targets, as many of each class."""
    generator = torch.Generator().manual_seed(seed)
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


def auc_by_folds(
    forgotten: Tensor,
    unseen: Tensor,
    people: tuple[Sequence[str], Sequence[str]],
    classifier: Classifier,
    seed: int,
) -> float | None:
    """Return the mean over folds of the AUC of forgotten (n, k) against unseen (m, k) samples; 0.5 is guessing.

    ``people`` says whose the samples of both sides are. None where a side has fewer than two people.
    """
    folds = min(FOLDS, len(set(people[0])), len(set(people[1])))
    if folds < 2:
        return None
    generator = torch.Generator().manual_seed(seed)
    mine, theirs = (_fold_of(each, folds, generator) for each in people)
    found = []
    for fold in range(folds):
        known = torch.cat([forgotten[mine != fold], unseen[theirs != fold]])
        labels = torch.cat([torch.ones(int((mine != fold).sum())), torch.zeros(int((theirs != fold).sum()))])
        judged = classifier(known, labels, torch.cat([forgotten[mine == fold], unseen[theirs == fold]]))
        count = int((mine == fold).sum())
        found.append(auc(judged[:count], judged[count:]))
    return sum(found) / folds


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
