"""Fixed features: modules that are fitted on no data, to put before a linear layer for the guarantee ``proved``.

All but ``Tangent`` compute their filters from their constructors' arguments. They have no parameters and no buffers,
so a certificate declares no part of them. ``forward`` works in the dtype of its input.

``Tangent`` linearises a whole network around public weights, which a certificate does list.
"""

from unlearning.features.constant_column import ConstantColumn
from unlearning.features.fourier import RandomFourier
from unlearning.features.kernels import RandomKernels
from unlearning.features.scattering import Scattering
from unlearning.features.tangent import Tangent

__all__ = ["ConstantColumn", "RandomFourier", "RandomKernels", "Scattering", "Tangent"]
