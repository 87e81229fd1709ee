"""A network linearised around public weights: Jacot, Gabriel and Hongler, "Neural tangent kernel", 2018, section 4.

``f(x) + J(x) u`` is affine in the displacement u of all weights at once, so a convex loss of it is convex in u. J(x) is
the derivative of the network's outputs at the public weights. The network itself is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from unlearning.types import RecipeError


@dataclass(frozen=True)
class Linearised:
    """f(x) (n, K) of some inputs, v (d,) -> J v (n, K), and r (n, K) -> J^T r (d,). The passes are kept in memory."""

    values: Tensor
    push: Callable[[Tensor], Tensor]
    pull: Callable[[Tensor], Tensor]


class Tangent(nn.Module):
    """The tangent of ``module`` at the weights ``at``, trained through one parameter: the displacement u (d,).

    Args:
        module: gives (n, K) outputs for (n, ...) inputs, each from its own input alone. A copy of it is kept, in
            evaluation mode. Its parameters with ``requires_grad`` are linearised, in their order; the others, and its
            buffers, are constants.
        at: its whole state_dict: public weights, fitted on no deletable person.

    ``forward`` takes (n, ...) and returns (n, K): about twice the work of a forward pass. ``state_dict`` holds the
    public weights and u. At u = 0 the outputs are those of ``module``.

    Raises:
        RuntimeError: ``at`` is not a state_dict of the module.
        ValueError: the module has no parameter with ``requires_grad``.
    """

    def __init__(self, module: nn.Module, at: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.base = copy.deepcopy(module)
        self.base.load_state_dict(at)
        named = [(name, value) for name, value in self.base.named_parameters() if value.requires_grad]
        if not named:
            raise RecipeError(
                "The module has no parameter with requires_grad: there is nothing to linearise.", "Leave one trained."
            )
        self.shapes = {name: tuple(value.shape) for name, value in named}
        self.base.requires_grad_(False)
        self.displacement = nn.Parameter(torch.zeros(sum(value.numel() for _, value in named)))
        self.train(self.training)

    def train(self, mode: bool = True) -> Tangent:
        """Set the mode as ``nn.Module`` does, but keep the linearised network in evaluation mode."""
        super().train(mode)
        self.base.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        found = jvp(lambda w: self._outputs(w, inputs), (self._start(),), (self.displacement,))
        value, slope = cast("tuple[Tensor, Tensor]", found)
        return value + slope

    def linearised(self, inputs: Tensor) -> Linearised:
        """Return the values and both products of J at these inputs (n, ...), over one forward pass."""
        # J v is the derivative of c -> J^T c, so the graph of J^T c is enough for both.
        with torch.enable_grad():
            start = self._start().requires_grad_()
            values = self._outputs(start, inputs)
            anything = torch.zeros_like(values, requires_grad=True)
            (pulled,) = torch.autograd.grad(values, start, anything, create_graph=True)

        def push(v: Tensor) -> Tensor:
            return torch.autograd.grad(pulled, anything, v, retain_graph=True)[0]

        def pull(r: Tensor) -> Tensor:
            return torch.autograd.grad(values, start, r, retain_graph=True)[0]

        return Linearised(values.detach(), push, pull)

    def rows(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(x) (n, K) and J(x) (n, K, d).

        Each input is evaluated alone: what is computed for it does not depend on the others, rounding included.
        """
        values, slopes = zip(*map(self.row, torch.split(inputs, 1)), strict=True)
        return torch.stack(values), torch.stack(slopes)

    def row(self, one: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(x) (K,) and J(x) (K, d) of a single input (1, ...)."""
        if isinstance(self.base, WrittenOut):
            return self.base.apart(one[0])
        with torch.enable_grad():
            start = self._start().requires_grad_()
            outputs = self._outputs(start, one)[0]
            every = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
            (slope,) = torch.autograd.grad(outputs, start, every, is_grads_batched=True)
        return outputs.detach(), slope

    def _start(self) -> Tensor:
        """Return the public weights as one vector (d,)."""
        named = dict(self.base.named_parameters())
        return torch.cat([named[name].detach().reshape(-1) for name in self.shapes])

    def _outputs(self, w: Tensor, inputs: Tensor) -> Tensor:
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = torch.split(w, sizes)
        weights = {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
        outputs: Tensor = functional_call(self.base, weights, (inputs,))
        return outputs


class WrittenOut(nn.Module):
    """An affine function whose values and Jacobian are its inputs: (n, K + K d) -> (n, K), with d weights."""

    def __init__(self, outputs: int, size: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weights = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        values, rows = self.apart(inputs)
        return values + rows @ self.weights

    def apart(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values (..., K) and the Jacobian (..., K, d) that inputs (..., K + K d) hold."""
        values, rows = inputs[..., : self.outputs], inputs[..., self.outputs :]
        return values, rows.reshape(*values.shape, len(self.weights))


def tangent_of_rows(outputs: int, size: int) -> Tangent:
    """Return the tangent whose f(x) and J(x) are written out in its inputs, (n, K + K d), so that no network is run."""
    return Tangent(WrittenOut(outputs, size), {"weights": torch.zeros(size)})
