"""Two-layer wavelet scattering of images: Bruna and Mallat, "Invariant scattering convolution networks", 2013.

An image x is filtered by Morlet wavelets psi at J scales and L orientations, the modulus is taken, and both are done a
second time with coarser scales: ``S x = [x * phi, |x * psi_1| * phi, ||x * psi_1| * psi_2| * phi]``, where phi is a
Gaussian of width 2^J. All convolutions are products in the Fourier domain.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unlearning.types import RecipeError

BLANK = 1e-6
"""a channel with a smaller norm than this after centring is set to zeros"""
WRAPS = 2
"""how many periods on each side a filter is summed over, so that it is periodic like the Fourier transform"""


class Scattering(nn.Module):
    """Scattering coefficients of images, each channel of each image normalised to mean 0 and norm ``channels`` ** -1/2.

    Args:
        height, width: size of the images in pixels; both divisible by 2^scales.
        scales: J, the number of scales; the output has one value for each square of 2^J pixels.
        orientations: L, the number of orientations.

    ``forward`` takes (n, height, width) or (n, c, height, width), float32 or float64, and returns (n, ``size`` c) in
    the same dtype. An image has norm 1, or less where some of its channels are blank.

    Raises:
        ValueError: a size that 2^scales does not divide.
    """

    def __init__(self, height: int, width: int, scales: int = 2, orientations: int = 8) -> None:
        super().__init__()
        if scales < 1 or orientations < 1 or height % 2**scales or width % 2**scales:
            raise RecipeError(
                f"Images of {height} x {width} pixels cannot be scattered at {scales} scales with {orientations} "
                f"orientations: both sizes must be divisible by {2**scales}.",
                "Pad the images first.",
            )
        self.height, self.width, self.scales, self.orientations = height, width, scales, orientations

    @property
    def channels(self) -> int:
        """1 + J L + J (J - 1) L^2 / 2, the number of scattering paths."""
        scales, turns = self.scales, self.orientations
        return 1 + scales * turns + scales * (scales - 1) * turns**2 // 2

    @property
    def size(self) -> int:
        """Numbers in the output for each input channel of one image."""
        return self.channels * (self.height >> self.scales) * (self.width >> self.scales)

    def forward(self, images: Tensor) -> Tensor:
        planes = images.reshape(-1, 1, self.height, self.width)
        paths = self._paths(planes)
        centred = paths - paths.mean(dim=2, keepdim=True)
        norms = centred.norm(dim=2, keepdim=True)
        normalised = torch.where(norms < BLANK, 0.0, centred / norms.clamp(min=BLANK))
        return normalised.reshape(len(images), -1) / math.sqrt(self.channels)

    def _paths(self, planes: Tensor) -> Tensor:
        """The coefficients (n, channels, pixels), averaged, before they are normalised."""
        margin = 2**self.scales
        padded = F.pad(planes, (margin,) * 4, mode="reflect")
        low, bands = filters(
            self.height + 2 * margin, self.width + 2 * margin, self.scales, self.orientations, planes.dtype
        )
        low, bands = low.to(planes.device), [band.to(planes.device) for band in bands]
        spectrum = torch.fft.fft2(padded)
        found = [self._average(spectrum, low)]
        for scale, band in enumerate(bands):
            first = torch.fft.fft2(torch.fft.ifft2(spectrum * band).abs())
            found.append(self._average(first, low))
            for coarser in bands[scale + 1 :]:
                for turn in range(self.orientations):
                    second = torch.fft.ifft2(first[:, turn : turn + 1] * coarser).abs()
                    found.append(self._average(torch.fft.fft2(second), low))
        return torch.cat(found, dim=1)

    def _average(self, spectra: Tensor, low: Tensor) -> Tensor:
        """Filter by phi and keep one value for each square of 2^J pixels inside the margin: (n, k, pixels)."""
        step = 2**self.scales
        smooth: Tensor = torch.fft.ifft2(spectra * low).real
        inside = smooth[..., step : step + self.height : step, step : step + self.width : step]
        return inside.flatten(2)


@lru_cache(maxsize=8)
def filters(height: int, width: int, scales: int, orientations: int, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Return phi (height, width) and, for each scale, psi (orientations, height, width), as real Fourier transforms.

    A Morlet wavelet at scale j and angle theta is ``exp(-(u^2 + s^2 v^2) / (2 sigma^2)) (exp(i xi u) - k)`` along
    the axes u, v turned by theta, with sigma = 0.8 2^j, xi = (3 pi / 4) 2^-j, s = 4 / L; k makes its mean zero.
    """
    low = _transform(_gabor((height, width), 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0))
    bands = []
    for scale in range(scales):
        sigma, xi, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4.0 / orientations
        turned = []
        for turn in range(orientations):
            angle = math.pi * turn / orientations
            wave = _gabor((height, width), sigma, angle, xi, slant)
            envelope = _gabor((height, width), sigma, angle, 0.0, slant)
            turned.append(_transform(wave - wave.sum() / envelope.sum() * envelope))
        bands.append(torch.stack(turned).to(dtype))
    return low.to(dtype), bands


def _gabor(shape: tuple[int, int], sigma: float, angle: float, xi: float, slant: float) -> Tensor:
    """Return a complex wave under a Gaussian of total weight 1, ``shape`` complex128, made periodic."""
    height, width = shape
    total = torch.zeros(height, width, dtype=torch.complex128)
    for down in range(-WRAPS, WRAPS + 1):
        for right in range(-WRAPS, WRAPS + 1):
            y = torch.arange(height, dtype=torch.float64)[:, None] + down * height
            x = torch.arange(width, dtype=torch.float64)[None, :] + right * width
            u = math.cos(angle) * x + math.sin(angle) * y
            v = math.cos(angle) * y - math.sin(angle) * x
            envelope = torch.exp(-(u**2 + (slant * v) ** 2) / (2.0 * sigma**2))
            total += torch.polar(envelope, xi * u)
    return total * (slant / (2.0 * math.pi * sigma**2))


def _transform(kernel: Tensor) -> Tensor:
    """The Fourier transform (float64); it is real, because the kernel at -x is the conjugate of the kernel at x."""
    spectrum: Tensor = torch.fft.fft2(kernel).real
    return spectrum
