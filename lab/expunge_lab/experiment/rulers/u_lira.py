"""U-LiRA: a likelihood-ratio attack made for each example, against what the unlearning itself leaves behind.

Hayes, Shumailov, Triantafillou, Khalifa and Papernot, "Inexact Unlearning Needs More Careful Evaluations to Avoid a
False Sense of Privacy" (arXiv 2403.01218). Many models are trained; each example is in half of them and is then
forgotten there by the method under test. For each example two normal distributions are fitted to its confidence: one
over the models that had and forgot it, one over those that never had it. Each model in turn is attacked with the
distributions of all the others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST_DEVIATION = 1e-6
"""of a confidence: smaller differences are rounding"""


def u_lira_accuracy(confidences: Tensor, inside: Tensor) -> float:
    """Return the share of right answers, to each example in each model: was it forgotten here, or never there?

    ``confidences`` (k, c) and ``inside`` (k, c) bool: model by example; true where the model had the example and forgot
    it. Every example must be inside at least 3 models and outside of 3. An answer without evidence counts half.
    """
    return float(right_answers(evidence(confidences, inside), inside).mean())


def evidence(confidences: Tensor, inside: Tensor) -> Tensor:
    """Return the log-likelihood ratio (k, c) float64, above 0 where an example looks forgotten and below where absent.

    Arguments are those of ``u_lira_accuracy``.
    """
    if int(inside.sum(dim=0).min()) < 3 or int((~inside).sum(dim=0).min()) < 3:
        raise ValueError("Each example must be forgotten in at least 3 models and absent from 3: use 6 models or more.")
    return torch.stack([_evidence(confidences, inside, model) for model in range(len(confidences))])


def right_answers(evidence: Tensor, inside: Tensor) -> Tensor:
    """Return (k, c) float64: 1 for a right answer, 0 for a wrong one, 0.5 for none."""
    answers = torch.where(inside, evidence, -evidence)
    return (answers > 0).double() + 0.5 * (answers == 0).double()


def _evidence(confidences: Tensor, inside: Tensor, model: int) -> Tensor:
    others = torch.arange(len(confidences)) != model
    seen, known, where = confidences[model].double(), confidences[others].double(), inside[others]
    return _log_density(seen, known, where) - _log_density(seen, known, ~where)


def _log_density(seen: Tensor, known: Tensor, where: Tensor) -> Tensor:
    weights = where.double()
    counts = weights.sum(dim=0)
    mean = (known * weights).sum(dim=0) / counts
    variance = ((known - mean) ** 2 * weights).sum(dim=0) / (counts - 1)
    deviation = variance.sqrt().clamp(min=LEAST_DEVIATION)
    return -0.5 * ((seen - mean) / deviation) ** 2 - deviation.log() - 0.5 * math.log(2 * math.pi)
