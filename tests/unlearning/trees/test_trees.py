"""Trees as bytes: what the libraries answer, nothing of single people, and the same bytes wherever they are trained."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import torch
import xgboost
from sklearn import ensemble
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from torch import Tensor

import unlearning as ul
from tests.unlearning.trees.cold import METHOD, leaving, setting
from tests.unlearning.trees.tables import EDGES, KINDS, NUMBERS, WITH_CATEGORY, digests, run_of, table
from unlearning.artefact import bytes_of
from unlearning.formats import format_of
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.parts import parts_of, require_declared
from unlearning.model.problem import Problem
from unlearning.model.user_code.own_training import WHOLE, seed_of
from unlearning.quality.simulate import forget_set, left_by
from unlearning.types import Learned, Refused


def recipe(kind: str, *, missing: bool = True, people: int | None = None) -> ul.Recipe:
    (model, train), loss, seen = KINDS[kind]
    x, y, names = table(missing)
    kept = [row for row, name in enumerate(names) if people is None or int(name[1:]) < people]
    samples = ul.Samples([str(row) for row in kept], [names[row] for row in kept], x[kept], seen(y)[kept], missing)
    return ul.Recipe(model=model, train=train, samples=samples, holdout=(x[:200], seen(y)[:200]), loss=loss)


def expected(kind: str, x: Tensor, y: Tensor) -> Tensor:
    """What the library's own model answers that was trained on bins, asked with bins."""
    (_, train), _, _ = KINDS[kind]
    if kind.startswith("lightgbm"):
        bins = train.grid.bins(x)
        given = {**train.options, "num_threads": 1, "deterministic": True, "force_row_wise": True, "verbose": -1}
        given |= {"seed": 7, "max_bin": train.grid.most + 1, "min_data_in_bin": 1}
        data = lightgbm.Dataset(bins, y.numpy(), categorical_feature=train.grid.categories, params=given)
        return torch.from_numpy(lightgbm.train(given, data, train.rounds).predict(bins, raw_score=True))
    if kind.startswith("xgboost"):
        bins = train.grid.bins(x, np.float32)
        start = 0.5 if "logistic" in train.options["objective"] else 0.0
        given = {**train.options, "seed": 7, "nthread": 1, "max_bin": train.grid.most + 1, "base_score": start}
        booster = xgboost.train({**given, "tree_method": "hist"}, xgboost.DMatrix(bins, y.numpy()), train.rounds)
        return torch.from_numpy(booster.predict(xgboost.DMatrix(bins), output_margin=True)).double()
    bins = train.grid.bins(x)
    fitted = getattr(ensemble, train.kind)(**train.options).fit(bins, y.numpy())
    if hasattr(fitted, "decision_function"):
        return torch.from_numpy(fitted.decision_function(bins))
    answer = fitted.predict_proba(bins) if hasattr(fitted, "predict_proba") else fitted.predict(bins)
    return torch.from_numpy(answer).clamp(min=1e-15).log() if answer.ndim == 2 else torch.from_numpy(answer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_answers_on_inputs_what_the_library_answers_on_bins(kind: str) -> None:
    (model, train), _, seen = KINDS[kind]
    x, y, _ = table(missing=True)
    data = train(run_of(x, seen(y)))
    torch.testing.assert_close(model.predict(data, x), expected(kind, x, seen(y)), rtol=1e-6, atol=1e-6)
    edge = x.nan_to_num(0.0)
    edge[:, :3] = torch.tensor(EDGES, dtype=torch.float64)[torch.arange(len(x)) % len(EDGES)][:, None]
    inside = edge.clone()
    inside[:, :3] -= 1e-4  # an edge belongs to the bin below it
    assert torch.equal(model.predict(data, edge), model.predict(data, inside))
    assert format_of(data) is not None


@pytest.mark.parametrize("kind", ["RandomForestRegressor", "ExtraTreesRegressor"])
def test_a_forest_of_several_targets_answers_all_of_them(kind: str) -> None:
    estimator = getattr(ensemble, kind)(n_estimators=5, random_state=0)
    model, train = ul.trees.sklearn(ul.grid(a=EDGES, b=EDGES), estimator)
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.stack([x[:, 0].sign(), 3 * x[:, 1], x.sum(dim=1)], dim=1)
    data = train(run_of(x, y))
    answer = estimator.fit(train.grid.bins(x), y.numpy()).predict(train.grid.bins(x))
    torch.testing.assert_close(model.predict(data, x), torch.from_numpy(answer))
    torch.testing.assert_close(model.predict(model.merge([data, data]), x), torch.from_numpy(answer))


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_file_answers_the_mean_of_its_members(kind: str) -> None:
    (model, train), _, seen = KINDS[kind]
    x, y, _ = table()
    members = [train(run_of(x[part], seen(y)[part], seed)) for seed, part in ((1, slice(0, 500)), (2, slice(500, 900)))]
    one, other = (model.predict(each, x) for each in members)
    mean = (one + other) / 2 if kind != "forest" else ((one.exp() + other.exp()) / 2).clamp(min=1e-15).log()
    within = 1e-5 if kind.startswith("xgboost") else 1e-12
    torch.testing.assert_close(model.predict(model.merge(members), x), mean, rtol=within, atol=within)


def test_bytes_are_the_same_in_a_fresh_process_with_more_threads() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "4", "PYTHONHASHSEED": "77"}
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.unlearning.trees.tables"]
    made = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert json.loads(made.stdout) == digests()


@pytest.mark.parametrize("method", [Retrain(), Shards(3, 1)], ids=["retrain", "shards"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_gives_the_bytes_of_a_training_without_the_person(kind: str, method: Any) -> None:
    problem = Problem(method.recipe(recipe(kind)))
    examples = problem.recipe.samples.examples()
    learned = Learned(problem.initial())
    state = method.prepare(problem, examples, learned)
    for people in (["p07"], ["p10", "p31", "p44"]) if isinstance(method, Shards) else (["p07"],):
        forget = forget_set(examples, people)
        left = left_by(examples, forget)
        after = method.forget(problem, state, forget, left, torch.Generator()).state.weights
        if isinstance(method, Shards):
            assert torch.equal(after, method.prepare(problem, left, learned).weights)
            assert not torch.equal(after, state.weights)
        else:
            alone = KINDS[kind][0][1](run_of(left.inputs, left.targets, _seed(problem)))
            assert bytes_of(after) == alone


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "hist", "forest", "extra trees"])
def test_a_hundred_deletions_and_ten_of_groups_equal_cold_trainings_in_a_fresh_process(kind: str) -> None:
    command = [sys.executable, "-m", "tests.unlearning.trees.cold", kind]
    begun = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True)
    problem, examples = setting(kind)
    state = METHOD.prepare(problem, examples, Learned(problem.initial()))
    found = []
    for people in leaving(examples):
        forget = forget_set(examples, people)
        after = METHOD.forget(problem, state, forget, left_by(examples, forget), torch.Generator())
        found.append(hashlib.sha256(bytes_of(after.state.weights)).hexdigest())
    assert len(found) == 110 and len(set(found)) == 110
    assert json.loads(begun.communicate()[0]) == found


def _seed(problem: Problem) -> int:
    return seed_of(problem, WHOLE)


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_of_a_sample_is_in_the_file(kind: str) -> None:
    (model, train), _, seen = KINDS[kind]
    x, y, _ = table()
    data = train(run_of(x, seen(y)))
    merged = model.merge([data, data])
    values = {repr(each) for each in x[:, :3].reshape(-1).tolist()} | {str(each) for each in x[:, 0].float().tolist()}
    for file in (data, merged):
        if file.startswith(b"\x93NUMPY"):
            nodes = np.load(BytesIO(file), allow_pickle=False)
            found = set(nodes["threshold"][nodes["feature"] >= 0].tolist())
            assert found <= {*EDGES, 0.5, 1.5, 2.5, np.inf}
            continue
        text = file.decode()
        assert not [each for each in values if each in text]
        assert "leaf_count" not in text and "internal_" not in text and "parameters" not in text
    if kind.startswith("xgboost"):
        trees = json.loads(data)["learner"]["gradient_booster"]["model"]["trees"]
        assert not any(any(tree[name]) for tree in trees for name in ("sum_hessian", "loss_changes", "base_weights"))
    if kind.startswith("lightgbm"):
        assert "feature_infos=[-2.0:2.0] [-2.0:2.0]" in text


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "hist", "forest"])
def test_the_weights_of_the_samples_count(kind: str) -> None:
    (_, train), _, seen = KINDS[kind]
    x, y, _ = table()
    once, thrice = torch.ones(len(x)).double(), torch.where(y > 1, 3.0, 1.0).double()
    plain, same, other = (train(run_of(x, seen(y), weights=each)) for each in (None, once, thrice))
    assert same != other and (plain == same or kind == "forest")  # a forest draws otherwise where there are weights


def test_the_libraries_own_readers_open_the_files(tmp_path: Path) -> None:
    x, y, _ = table()
    for kind in ("lightgbm", "xgboost"):
        (model, train), _, seen = KINDS[kind]
        data = train(run_of(x, seen(y)))
        path = tmp_path / f"model.{model.suffix}"
        path.write_bytes(data)
        if kind == "lightgbm":
            found = lightgbm.Booster(model_file=path).predict(x.numpy(), raw_score=True)
        else:
            booster = xgboost.Booster(model_file=path)
            given = xgboost.DMatrix(x.numpy(), feature_names=list("abcd"))
            found = booster.predict(given, output_margin=True)
        torch.testing.assert_close(torch.from_numpy(found).double(), model.predict(data, x), rtol=0, atol=0)


def test_a_class_that_one_member_lacks_is_a_forests_zero_and_a_boosters_refusal() -> None:
    x, y, _ = table()
    seen = (y > 0).long()
    model, train = ul.trees.sklearn(NUMBERS, RandomForestClassifier(3, random_state=0), classes=3)
    answers = model.predict(train(run_of(x, seen)), x)
    assert answers.shape == (900, 3) and float(answers[:, 2].max()) < -30
    _, booster = ul.trees.sklearn(NUMBERS, HistGradientBoostingClassifier(random_state=0), classes=3)
    with pytest.raises(ul.RecipeError, match="2 of 3 classes"):
        booster(run_of(x, seen))
    with pytest.raises(ul.RecipeError, match="a single sample"):
        booster(run_of(x[:1], seen[:1]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_of_four_samples_or_less_merges_with_a_large_one(kind: str) -> None:
    (model, train), _, seen = KINDS[kind]
    x, y, _ = table()
    few = [int((seen(y) == each).nonzero()[0]) for each in seen(y).unique()[:3].tolist()] + [5]
    members = [train(run_of(x[part], seen(y)[part])) for part in (few, slice(None))]
    answers = model.predict(model.merge(members), x)
    assert bool(torch.isfinite(answers).all())


TRAPS: dict[str, tuple[Any, str]] = {
    "stopping": (lambda: ul.trees.lightgbm(NUMBERS, early_stopping_round=5), "rows of people that this training"),
    "stopping in xgboost": (lambda: ul.trees.xgboost(NUMBERS, early_stopping_rounds=5), "rows of people that this"),
    "threads": (lambda: ul.trees.lightgbm(NUMBERS, num_threads=8), "no option 'num_threads'"),
    "bins from a file": (lambda: ul.trees.lightgbm(NUMBERS, forcedbins_filename="a"), "no option 'forcedbins"),
    "a generator": (
        lambda: ul.trees.sklearn(NUMBERS, RandomForestClassifier(random_state=np.random.RandomState(0)), classes=2),
        "random_state=RandomState",
    ),
    "other estimator": (
        lambda: ul.trees.sklearn(NUMBERS, GradientBoostingClassifier(random_state=0), classes=2),
        "GradientBoostingClassifier",
    ),
    "category": (lambda: ul.trees.xgboost(WITH_CATEGORY), "'d' is a category"),
    "category in a forest": (
        lambda: ul.trees.sklearn(WITH_CATEGORY, RandomForestClassifier(random_state=0), classes=2),
        "'d' is a category",
    ),
    "classes": (lambda: ul.trees.sklearn(NUMBERS, RandomForestClassifier(random_state=0)), "has 1 classes"),
    "edges": (lambda: ul.grid(a=[1.0, 1.0]), "finite numbers that rise"),
    "one value": (lambda: ul.grid(a=1), "has 1 values"),
    "no column": (lambda: ul.grid(), "no column"),
    "columns": (lambda: NUMBERS.bins(torch.zeros(2, 3)), "4 columns"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_traps_are_refused(trap: str) -> None:
    make, said = TRAPS[trap]
    with pytest.raises(ul.RecipeError, match=said):
        make()


def test_quantile_bins_of_everyone_are_a_part_that_nobody_declared_and_change_when_a_person_goes() -> None:
    def by_quantiles(people: int) -> ul.Recipe:
        whole = recipe("lightgbm, numbers", missing=False, people=people)
        x, _ = whole.samples.tensors()
        edges = {
            name: torch.quantile(x[:, place], torch.linspace(0.1, 0.9, 9).double()) for place, name in enumerate("abc")
        }
        model, train = ul.trees.lightgbm(ul.grid(**edges, d=[0.5]), objective="regression")
        return ul.Recipe(model=model, train=train, samples=whole.samples, holdout=whole.holdout, loss=whole.loss)

    everyone, without = (parts_of(by_quantiles(people)) for people in (60, 59))
    assert [each.name for each in everyone] == [f"train.grid.edges.{place}" for place in range(4)]
    with pytest.raises(Refused, match="not declare public"):
        require_declared(by_quantiles(60), everyone)
    assert [each.digest for each in everyone[:3]] != [each.digest for each in without[:3]]
