"""Fit the linear layer that weighs the answers of the members: stacking (Wolpert, "Stacked generalization", 1992)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from unlearning.methods.shards.ensemble import averaging
from unlearning.model.problem import Problem
from unlearning.model.user_code.own_training import Fitted
from unlearning.types import Examples, Progress, Refused, silent

RIDGE = 1e-2
"""how strongly the head is held at its start, the average"""
ITERATIONS = 50


@dataclass(frozen=True)
class MemberAnswers:
    """The answers of a trained member, which the head is fitted on."""

    def carried_out(self, problem: Problem, examples: Examples, start: Fitted | None, progress: Progress) -> Fitted:
        """Return the answers (n, K) in place of weights; ``start`` holds those of the member."""
        if start is None:
            raise ValueError("a member answers at its weights, and none are given")
        return Fitted(answers_of(problem, start.weights, examples))


def answers_of(member: Problem, weights: Tensor, examples: Examples) -> Tensor:
    """Return the member's log-probabilities, (n, K), at weights (d,).

    Each name in ``examples.people`` makes one batch. Its samples are forgotten together: numbers of a person do
    not depend, to the last bit, on other people.
    """
    if member.fresh is not None:
        return member.fresh(MemberAnswers(), examples, Fitted(weights), silent).weights
    rows: dict[str, list[int]] = {}
    for row, person in enumerate(examples.people):
        rows.setdefault(person, []).append(row)
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for mine in rows.values():
            outputs = member.outputs(weights, examples.inputs[mine]).log_softmax(dim=-1)
            found |= zip(mine, outputs, strict=True)
    if not found:
        raise Refused("The head has no sample to be fitted on.", "Raise head, or leave it out.")
    return torch.stack([found[row] for row in range(len(examples))])


def fit_head(answers: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Fit the head on the members' answers (S, n, K) for targets (n,): from the average, by L-BFGS in float64.

    Minimises the mean cross entropy plus half of ``RIDGE`` times the squared distance from the average. The result
    depends on the arguments alone.
    """
    count, _, classes = answers.shape
    inputs = answers.permute(1, 0, 2).flatten(start_dim=1).double()
    start = averaging(count, classes).to(inputs)
    weight, bias = start.clone().requires_grad_(), torch.zeros(classes).to(inputs).requires_grad_()
    solver = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        away = (weight - start).square().sum() + bias.square().sum()
        value = F.cross_entropy(inputs @ weight.T + bias, targets) + 0.5 * RIDGE * away
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    return {"head.weight": weight.detach(), "head.bias": bias.detach()}
