"""Whose fault an error is: the recipe's, the maths' on the recipe's model and data, or ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from expunge.workers.runtime.failures import refusal_of
from unlearning.accounting.budget import epsilon_of
from unlearning.features import Scattering


def test_an_error_of_the_accounting_is_never_the_recipes(tmp_path: Path) -> None:
    assert refusal_of(raised_by(lambda: epsilon_of(-1, 1e-5)), tmp_path) is None


def test_an_error_of_the_maths_is_the_recipes(tmp_path: Path) -> None:
    refused = refusal_of(raised_by(lambda: Scattering(8, 8)(torch.zeros(3))), tmp_path)
    assert refused is not None and refused.what.startswith("The recipe raised ")


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
