"""Which answers of a published version are the labels that retraining without the forgotten gives under the same noise.

A published version is ``y = w~ + noise``, and ``w~`` lies within ``max_distance`` of the retraining. So y lies within
``reach`` of what that retraining would have been published as, with the same noise. A difference of two scores with
slope s, the norm of its derivative in the weights, moves by at most ``reach * s`` between the two. An answer whose
margin over every other class is larger has the same label in both.

It is about labels, and about versions with the guarantee ``proved``. It is no claim about scores.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from unlearning.accounting.budget import check_number
from unlearning.features.tangent import Tangent
from unlearning.model.linear_head import gamma, last_linear
from unlearning.model.tangent import ROWS, written_out
from unlearning.types import Refused

SINGLE, DOUBLE = 24, 53
"""binary digits of a stored weight: float32, float64"""
SLACK = 1.0 + 1e-6
"""covers the rounding of norms and of these formulas themselves"""
DIGITS = {torch.float32: SINGLE, torch.float64: DOUBLE}


def reach(max_distance: float, weights_norm: float, digits: int = SINGLE) -> float:
    """Return how far the published weights can lie from a retraining's under the same noise: Delta + 2 r.

    ``max_distance`` (Delta) is the certificate's. ``weights_norm`` is the Euclidean norm of all published weights, and
    r = 2^-digits of it bounds the rounding of either side when it is stored.

    Raises:
        ValueError: a number that is negative or not finite.
    """
    check_number("max_distance", max_distance, least=0.0)
    check_number("weights_norm", weights_norm, least=0.0)
    return SLACK * (max_distance + 2.0 * 2.0**-digits * weights_norm)


def is_independent(margins: Iterable[float], slopes: Iterable[float], reach: float, error: float) -> bool:
    """Tell whether no retraining within ``reach`` gives another label.

    Args:
        margins: for every other class b, ``z_a - z_b`` at the published weights, where a is the answer. With a single
            score z, with its sign as the answer: ``|z|``.
        slopes: the norm of each margin's derivative in the weights. A linear head on features phi (its constant
            included) has ``sqrt(2) ||phi||``, a single score ``||phi||``.
        reach: what ``reach`` returns.
        error: how wrong each margin can be as it was computed.

    NaN and infinity give False.
    """
    pairs = zip(margins, slopes, strict=True)
    return all(reach * slope + error < margin < math.inf for margin, slope in pairs)


@dataclass(frozen=True)
class Answers:
    """Labels (n,) int64, and for each whether no retraining within the bound answers otherwise, (n,) bool."""

    labels: Tensor
    independent: Tensor


Scored: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""scores (n, K); the slopes (n, K, K) of their differences, of a single score its own; the error (n,) of each score"""


class Answering:
    """Answers with a published linear head or ``Tangent``, in float64, and says which answers are independent.

    Args:
        module: the recipe's model, with a published version loaded. It is copied.
        max_distance: what that version's certificate says, under the guarantee ``proved``.

    A single score is a label of 0 or 1 by its sign, as ``binary_logistic`` has it; several give the largest one's.

    Raises:
        Refused: the module is neither, or its trained weights are neither float32 nor float64.
    """

    def __init__(self, module: nn.Module, max_distance: float) -> None:
        trained = [value for value in module.parameters() if value.requires_grad]
        kinds = {value.dtype for value in trained}
        if len(kinds) != 1 or not kinds <= set(DIGITS):
            raise Refused("The trained weights are not all float32 or all float64.", "Load the version as published.")
        w = torch.cat([value.detach().double().reshape(-1) for value in trained])
        norm = float(w.norm())
        self._reach = reach(max_distance, norm, DIGITS[kinds.pop()])
        own = copy.deepcopy(module).double().eval()
        head = last_linear(own)
        if type(own) is Tangent:
            self._scored: Callable[[Tensor], Scored] = partial(_of_tangent, own)
        elif head is not None:
            self._scored = partial(_of_head, *head, norm)
        else:
            raise Refused("The model is no linear head and no tangent.", "Only these have such answers.")

    def __call__(self, inputs: Tensor) -> Answers:
        """Return the answers for inputs (n, ...), floating-point ones in float64."""
        x = inputs.double() if inputs.dtype.is_floating_point else inputs
        scores, slopes, errors = self._scored(x)
        each = torch.arange(len(scores), device=scores.device)
        if scores.shape[1] == 1:
            labels, margins, slopes = (scores[:, 0] > 0).long(), scores.abs(), slopes[:, 0]
        else:
            labels = scores.argmax(dim=1)
            others = torch.arange(scores.shape[1], device=scores.device) != labels.unsqueeze(1)
            margins = (scores[each, labels].unsqueeze(1) - scores)[others].reshape(len(x), -1)
            slopes = slopes[each, labels][others].reshape(len(x), -1)
        rows = zip(margins.tolist(), slopes.tolist(), (2.0 * SLACK * errors).tolist(), strict=True)
        found = [is_independent(margin, slope, self._reach, error) for margin, slope, error in rows]
        return Answers(labels, torch.tensor(found, dtype=torch.bool))


def _of_head(before: nn.Module, layer: nn.Linear, norm: float, x: Tensor) -> Scored:
    with torch.no_grad():
        phi = before(x)
        scores: Tensor = layer(phi)
    length = (phi.square().sum(dim=1) + (layer.bias is not None)).sqrt()
    errors = gamma(phi.shape[1] + 2) * norm * length
    classes = scores.shape[1]
    steep = 1.0 if classes == 1 else 2.0**0.5
    return scores, (steep * length).reshape(-1, 1, 1).expand(-1, classes, classes), errors


def _of_tangent(tangent: Tangent, x: Tensor) -> Scored:
    size = tangent(x[:1]).shape[1] * len(tangent.displacement)
    found = [_of_block(tangent, block) for block in torch.split(x, max(1, ROWS // size))]
    scores, slopes, errors = (torch.cat(part) for part in zip(*found, strict=True))
    return scores, slopes, errors


def _of_block(tangent: Tangent, x: Tensor) -> Scored:
    values, rows = tangent.rows(x)
    scores, drift, _ = written_out(values, rows, tangent.displacement.detach())
    ends = torch.zeros_like(rows) if scores.shape[1] == 1 else rows
    apart = [
        torch.cdist(one, end, compute_mode="donot_use_mm_for_euclid_dist") for one, end in zip(rows, ends, strict=True)
    ]
    return scores, torch.stack(apart), drift.amax(dim=1)
