"""Bytes as a model: what is refused, and what the module answers."""

from __future__ import annotations

import io
import pickle

import joblib
import pytest
import torch

import unlearning as ul
from unlearning.artefact import Bytes, bytes_of, tensor_of

LIGHTGBM = "tree\nversion=v4\nnum_class=1\nTree=0\nnum_leaves=2\nthreshold=0.5\nleaf_value=0.1 -0.1\n\nend of trees\n"


A = b'{"b": 1}'
PICKLE = pickle.dumps({"weights": [1.0, 2.0]})


def test_bytes_of_no_known_format_are_refused() -> None:
    """A joblib file passed as bytes that hold no pickle."""
    file = io.BytesIO()
    joblib.dump({"weights": [1.0, 2.0]}, file, compress=3)
    for data in (PICKLE, file.getvalue(), b"anything"):
        with pytest.raises(ul.RecipeError, match="no format that is known to run no code"):
            tensor_of(data)


def test_bytes_of_a_known_format_come_back_as_they_are() -> None:
    assert bytes_of(tensor_of(LIGHTGBM.encode())) == LIGHTGBM.encode()


def test_the_module_answers_by_predict() -> None:
    module = ul.Artefact(lambda data, x: x * len(data))()
    assert isinstance(module, Bytes)
    with pytest.raises(ul.RecipeError, match="not trained"):
        module(torch.ones(1))
    module.data = tensor_of(A)
    assert float(module(torch.ones(1))) == 8.0


def test_a_published_file_answers_again() -> None:
    answering = ul.published(ul.Artefact(lambda data, x: x * len(data)), A)
    assert float(answering(torch.ones(1))) == 8.0
    with pytest.raises(ul.RecipeError, match="the file returned bytes of no format"):
        ul.published(ul.Artefact(lambda data, x: x), b"abcd")


def _samples(value: float, *, missing: bool = False) -> ul.Samples:
    inputs = torch.tensor([[value], [1.0]])
    return ul.Samples(("a", "b"), ("p", "q"), inputs, torch.zeros(2, dtype=torch.int64), missing=missing)


def test_an_input_may_be_missing_where_the_recipe_says_so() -> None:
    kept = _samples(float("nan"), missing=True).take(torch.tensor([0]))
    assert kept.missing and bool(kept.tensors()[0].isnan().all())
    with pytest.raises(ul.RecipeError, match="NaN or infinity"):
        _samples(float("nan"))
    with pytest.raises(ul.RecipeError, match="NaN or infinity"):
        _samples(float("inf"), missing=True)
