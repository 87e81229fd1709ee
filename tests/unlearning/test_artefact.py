"""Bytes as a model: what is refused, and what the module answers."""

from __future__ import annotations

import io
import pickle

import joblib
import numpy as np
import pytest
import torch

import unlearning as ul
from unlearning.artefact import Bytes, bytes_of, tensor_of
from unlearning.model.parts import parts_of, require_declared
from unlearning.rows import Published
from unlearning.types import Refused

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


def test_a_format_that_the_recipe_names_passes() -> None:
    assert bytes_of(tensor_of(b"GGUF...", named="gguf")) == b"GGUF..."
    with pytest.raises(ul.RecipeError, match="no byte"):
        tensor_of(b"", named="gguf")
    with pytest.raises(ul.RecipeError, match="The format is 'G G'"):
        ul.Artefact(lambda _, x: x, format="G G")
    assert ul.Artefact(lambda _, x: x, suffix="joblib", format="joblib").format == "joblib"


def test_bytes_of_a_known_format_come_back_as_they_are() -> None:
    assert bytes_of(tensor_of(LIGHTGBM.encode())) == LIGHTGBM.encode()


@pytest.mark.parametrize("suffix", ["pkl", "model.joblib", "../x", "A.txt", "", "pt"])
def test_a_suffix_is_a_plain_word_and_not_that_of_pickles(suffix: str) -> None:
    with pytest.raises(ul.RecipeError, match="suffix"):
        ul.Artefact(lambda _, x: x, suffix=suffix)


def test_the_suffix_zip_is_that_of_several_files() -> None:
    """Whoever serves a version unpacks what ends in .zip."""
    several = ul.Artefact(lambda _, x: x, suffix="zip")
    files: dict[str, bytes | str] = {"model.txt": LIGHTGBM, "words.json": "{}"}
    assert bytes_of(several.tensor(bytes(Published(files)))) == bytes(Published(files))
    file = io.BytesIO()
    np.savez(file, a=np.ones(2))
    for data in (LIGHTGBM.encode(), file.getvalue()):
        with pytest.raises(ul.RecipeError, match="train returned no archive of several files, and the suffix is 'zip'"):
            several.tensor(data)
        assert bytes_of(ul.Artefact(lambda _, x: x, suffix="npz").tensor(data)) == data
    with pytest.raises(ul.RecipeError, match="of several files of known formats, and the format is 'gguf'"):
        ul.Artefact(lambda _, x: x, suffix="zip", format="gguf")


def test_merge_must_give_the_same_bytes_again() -> None:
    calls = iter(range(9))
    drifting = ul.Artefact(lambda _, x: x, lambda members: b'{"a": %d}' % next(calls))
    with pytest.raises(ul.RecipeError, match="second call"):
        drifting.merged([tensor_of(A)])
    joined = ul.Artefact(lambda _, x: x, lambda members: b'{"a": [%s]}' % b", ".join(members))
    members = [tensor_of(A), torch.empty(0, dtype=torch.uint8), tensor_of(b"{}")]
    assert bytes_of(joined.merged(members)) == b'{"a": [{"b": 1}, {}]}'
    with pytest.raises(ul.RecipeError, match="has no merge"):
        ul.Artefact(lambda _, x: x).merged([tensor_of(A)])


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
