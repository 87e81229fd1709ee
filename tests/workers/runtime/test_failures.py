"""Whose fault an error is: the recipe's, the maths' on the recipe's model and data, or ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from expunge_service.queue import ADVICE, REPORT
from expunge_workers.app import _where
from expunge_workers.runtime import recipes
from expunge_workers.runtime.failures import OurFault, refusal_of
from unlearning.accounting.budget import epsilon_of
from unlearning.features import Scattering
from unlearning.types import Refused


def test_an_error_of_the_accounting_is_never_the_recipes(tmp_path: Path) -> None:
    assert isinstance(refusal_of(raised_by(lambda: epsilon_of(-1, 1e-5)), tmp_path), OurFault)


def test_a_library_that_the_maths_called_is_the_fault_of_expunge(tmp_path: Path) -> None:
    """torch raises, and the innermost line that is no library's is ours."""
    error = raised_by(lambda: Scattering(8, 8)(torch.zeros(3)))
    refused = refusal_of(error, tmp_path)
    assert refused is not None
    place = f"at line {_where(error)['line']} of unlearning/features/scattering.py"
    assert refused.what == f"Expunge raised {type(error).__name__} {place}."
    assert str(error)[:20] in refused.hint and refused.hint.endswith(REPORT) and ADVICE not in refused.hint
    assert _where(error)["cause"] == "our_fault"


RAISING = {
    "the recipe itself": ("{}['age']", "The recipe raised KeyError at line 3 of r.py.", ADVICE),
    "a library that it called": ("torch.zeros(3) @ torch.zeros(4)", "The recipe raised RuntimeError at line 3", ADVICE),
    "ours that it called": ("Scattering(8, 8)(torch.zeros(3))", "of unlearning/features/scattering.py.", REPORT),
    "ours, on purpose": ("Scattering(7, 8)", "Images of 7 x 8 pixels cannot be scattered", "Pad the images first."),
    "no Python": ("(", "The recipe raised SyntaxError at line 3 of r.py.", ADVICE),
}


@pytest.mark.parametrize("place", RAISING)
def test_the_innermost_line_of_the_recipe_or_of_ours_is_the_one_at_fault(tmp_path: Path, place: str) -> None:
    line, what, hint = RAISING[place]
    (tmp_path / "r.py").write_text(f"import torch\nfrom unlearning.features import Scattering\nx = {line}\n")
    with pytest.raises(Refused) as caught:
        recipes.load(tmp_path, "r", lambda recipe: recipe())
    assert what in caught.value.what and caught.value.hint.endswith(hint)


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
