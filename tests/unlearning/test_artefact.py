"""Bytes as a model: what is refused, and what the module answers."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import pickle
import zipfile
import zlib

import numpy as np
import pytest
import torch

import unlearning as ul
from unlearning.artefact import Bytes, bytes_of, is_pickle, tensor_of
from unlearning.model.parts import parts_of, require_declared
from unlearning.types import Refused

LIGHTGBM = "tree\nversion=v4\nnum_class=1\nTree=0\nnum_leaves=2\nthreshold=0.5\nleaf_value=0.1 -0.1\n\nend of trees\n"


def _zip(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/data", content)
    return file.getvalue()


def _array(values: object, **given: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values, **given))  # type: ignore[call-overload]
    return file.getvalue()


PICKLE = pickle.dumps({"weights": [1.0, 2.0]})
HELD: dict[str, bytes] = {
    **{f"protocol {each}": pickle.dumps([1.5, "a"], protocol=each) for each in range(6)},
    "zlib": zlib.compress(PICKLE),
    "bz2": bz2.compress(PICKLE),
    "xz": lzma.compress(PICKLE),
    "zip": _zip(PICKLE),
    "zip of zlib": _zip(zlib.compress(PICKLE)),
    "objects": _array([{"a": 1}], dtype=object),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_pickle_is_found(kind: str) -> None:
    assert is_pickle(HELD[kind])
    with pytest.raises(ul.RecipeError, match="a pickle, which runs code"):
        tensor_of(HELD[kind])


def test_torchs_own_file_is_a_pickle() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file)
    assert is_pickle(file.getvalue())


SAFE = {
    "text": LIGHTGBM.encode(),
    "json": json.dumps({"learner": {"trees": [0.5, 1.0]}}).encode(),
    "array": _array([1.0, 2.0]),
    "zip": _zip(json.dumps({"a": 0.25}).encode()),
    "one": b"1",
}


@pytest.mark.parametrize("kind", SAFE)
def test_other_bytes_come_back_as_they_are(kind: str) -> None:
    assert bytes_of(tensor_of(SAFE[kind])) == SAFE[kind]


@pytest.mark.parametrize("suffix", ["pkl", "model.joblib", "../x", "A.txt", "", "pt"])
def test_a_suffix_is_a_plain_word_and_not_that_of_pickles(suffix: str) -> None:
    with pytest.raises(ul.RecipeError, match="suffix"):
        ul.Artefact(lambda _, x: x, suffix=suffix)


def test_merge_must_give_the_same_bytes_again() -> None:
    calls = iter(range(9))
    drifting = ul.Artefact(lambda _, x: x, lambda members: b"%d" % next(calls))
    with pytest.raises(ul.RecipeError, match="second call"):
        drifting.merged([tensor_of(b"a")])
    joined = ul.Artefact(lambda _, x: x, b"+".join)
    assert bytes_of(joined.merged([tensor_of(b"a"), torch.empty(0, dtype=torch.uint8), tensor_of(b"b")])) == b"a+b"
    with pytest.raises(ul.RecipeError, match="has no merge"):
        ul.Artefact(lambda _, x: x).merged([tensor_of(b"a")])


def test_the_module_answers_by_predict() -> None:
    module = ul.Artefact(lambda data, x: x * len(data))()
    assert isinstance(module, Bytes)
    with pytest.raises(ul.RecipeError, match="not trained"):
        module(torch.ones(1))
    module.data = tensor_of(b"abc")
    assert float(module(torch.ones(1))) == 3.0


def test_a_published_file_answers_again() -> None:
    answering = ul.published(ul.Artefact(lambda data, x: x * len(data)), b"abcd")
    assert float(answering(torch.ones(1))) == 4.0


OLD_MODEL = b"leaf_value=0.25 0.5\n" * 20


def _going_on(run: ul.Run) -> bytes:
    return OLD_MODEL + bytes(len(run.inputs))


def test_an_earlier_models_bytes_that_train_refers_to_are_a_part_that_nobody_declared() -> None:
    holdout = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    recipe = ul.Recipe(ul.Artefact(lambda _, x: x), _samples(1.0), holdout, "binary_logistic", train=_going_on)
    (part,) = parts_of(recipe)
    assert (part.name, part.size, part.public) == ("train.OLD_MODEL", len(OLD_MODEL), False)
    with pytest.raises(Refused, match="does not declare public"):
        require_declared(recipe, (part,))


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
