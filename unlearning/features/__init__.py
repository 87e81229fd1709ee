"""Fixed features: modules that are fitted on nothing, to put before a linear layer whose guarantee is ``proved``.

Each computes its filters from its constructor's arguments. It has no parameters and no buffers, so a certificate has
nothing to declare about it. ``forward`` works in the dtype of its input.
"""

from unlearning.features.fourier import RandomFourier
from unlearning.features.kernels import RandomKernels
from unlearning.features.scattering import Scattering

__all__ = ["RandomFourier", "RandomKernels", "Scattering"]
