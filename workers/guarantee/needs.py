"""What an update must be given: the union of its method's needs and its guarantee's."""

from __future__ import annotations

import secrets

import torch

from unlearning.accounting.certificate import Guarantee
from unlearning.model.method import Method
from unlearning.types import Need


def needs_retained(method: Method, guarantee: Guarantee) -> bool:
    """Tell whether an update reads the retained samples. ``proved`` does, with every method."""
    return Need.RETAINED in method.needs or guarantee is Guarantee.PROVED


def needs_forgotten(method: Method) -> bool:
    """Tell whether the method reads the forgotten samples themselves."""
    return Need.FORGOTTEN in method.needs


def generator(device: torch.device) -> torch.Generator:
    """Return a generator for a method's own draws, seeded by the operating system. Not for the certificate's noise."""
    return torch.Generator(device).manual_seed(secrets.randbits(63))
