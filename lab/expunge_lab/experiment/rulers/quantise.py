"""Weights rounded to 4 bits: does an attack find more in what is served after rounding?

Zhang, Wang, Li, Wu, Tang, Liu, He, Yin and Wang, "Catastrophic Failure of LLM Unlearning via Quantization" (ICLR 2025,
arXiv 2410.16454): an update that moves weights by less than half a step of the grid is undone by rounding to it, and
the forgotten come back. Round to nearest, for each tensor by itself:

    Q(w) = D round(w / D),    D = max |w| / 2^(bits - 1),    in whole numbers from -2^(bits - 1) to 2^(bits - 1) - 1.
"""

from __future__ import annotations

from torch import Tensor

from unlearning.model.problem import Problem

BITS = 4


def quantised(problem: Problem, w: Tensor, bits: int = BITS) -> Tensor:
    """Return w (d,) with each parameter rounded to ``bits`` bits; buffers stay as they are."""
    rounded = w.clone()
    for slot in problem.layout:
        if not slot.buffer:
            rounded[slot.start : slot.stop] = _nearest(w[slot.start : slot.stop], bits)
    return rounded


def _nearest(values: Tensor, bits: int) -> Tensor:
    levels = 2 ** (bits - 1)
    step = values.abs().max() / levels
    return values if float(step) == 0.0 else step * (values / step).round().clamp(-levels, levels - 1)
