"""What a release must be given: the union of its method's needs and its basis's."""

from __future__ import annotations

import secrets

import torch

from unlearning.accounting.certificate import Basis
from unlearning.types import Method, Need


def needs_retained(method: Method, basis: Basis) -> bool:
    """``proved`` reads the retained samples at every release, whatever the method needs."""
    return Need.RETAINED in method.needs or basis is Basis.PROVED


def needs_forgotten(method: Method) -> bool:
    """Whether the method reads the forgotten samples themselves."""
    return Need.FORGOTTEN in method.needs


def generator(device: torch.device) -> torch.Generator:
    """A fresh generator for a method's own draws, seeded by the operating system. Not for the certificate's noise."""
    return torch.Generator(device).manual_seed(secrets.randbits(63))
