"""What trees cost through the service: a first version, a deletion, and accuracy, each beside one plain fit.

Fair's affairs: 6,366 women, one row each, of the package ``statsmodels`` (``pip install -e .[benchmarks]``): did she
have one? A fifth of the women is the holdout. With ``--large``: 48,000 rows of 3,000 people, made by
``sklearn.datasets.make_classification``, and four shards alone. The plain fit is the library's own, with its own bins,
in one thread. S = 1 is the method ``retrain``, others are ``shards``.

A worker in this process registers each model, carries out deletions one by one, and registers a second model without
these people: are the two files equal? CPU seconds are those of this process and of the server of fresh processes.
``python -m benchmarks.trees [--large] [deletions] [kinds]`` prints the table.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score

import unlearning as ul
from expunge.service.infra.db import Database
from expunge.service.infra.migrate import migrate
from expunge.service.infra.settings import Settings, ensure_secrets
from expunge.workers.runtime import recipes
from expunge.workers.runtime.fresh import server
from tests.workers.worlds import World, open_world

KINDS = ("lightgbm", "xgboost", "hist", "forest")
SHARDS = (1, 4, 8)
DELETIONS = 2
ROUNDS, LEAVES, RATE = 100, 15, 0.05
ANSWERS = {
    "rate_marriage": (1, 2, 3, 4, 5),
    "age": (17.5, 22, 27, 32, 37, 42),
    "yrs_married": (0.5, 2.5, 6, 9, 13, 16.5, 23),
    "children": (0, 1, 2, 3, 4, 5.5),
    "religious": (1, 2, 3, 4),
    "educ": (9, 12, 14, 16, 17, 20),
    "occupation": (1, 2, 3, 4, 5, 6),
    "occupation_husb": (1, 2, 3, 4, 5, 6),
}
"""what the questionnaire lets a woman answer; trees may split between two answers"""
LARGE_ROWS, LARGE_COLUMNS, LARGE_PEOPLE = 48_000, 14, 3_000
TICK = os.sysconf("SC_CLK_TCK")


def table(large: bool) -> tuple[ul.Samples, tuple[torch.Tensor, torch.Tensor]]:
    """Return samples and holdout."""
    if large:
        x, y = make_classification(
            LARGE_ROWS, LARGE_COLUMNS, n_informative=8, n_clusters_per_class=4, flip_y=0.15, random_state=0
        )
        people = [f"person-{row % LARGE_PEOPLE:04d}" for row in range(len(x))]
        ids = [f"row-{row:05d}" for row in range(len(x))]
        samples, holdout, _ = ul.Samples(ids, people, torch.tensor(x), torch.tensor(y)).split(0.2)
        return samples, holdout
    import statsmodels.api  # noqa: PLC0415 (an extra)

    data = statsmodels.api.datasets.fair.load_pandas().data
    x, y = data[list(ANSWERS)].to_numpy(), (data["affairs"].to_numpy() > 0).astype(np.int64)
    women = [f"woman-{row:04d}" for row in range(len(x))]
    samples, holdout, _ = ul.Samples(women, women, torch.tensor(x), torch.tensor(y)).split(0.2)
    return samples, holdout


def estimators() -> dict[str, Any]:
    booster = HistGradientBoostingClassifier(
        max_iter=ROUNDS, max_leaf_nodes=LEAVES, learning_rate=RATE, early_stopping=False, random_state=0
    )
    return {"hist": booster, "forest": RandomForestClassifier(100, min_samples_leaf=20, random_state=0)}


def model(kind: str, large: bool) -> tuple[Any, Any]:
    between = {name: [(low + high) / 2 for low, high in pairwise(given)] for name, given in ANSWERS.items()}
    if large:
        between = {f"x{column}": [edge / 16 for edge in range(-95, 96)] for column in range(LARGE_COLUMNS)}
    where = ul.grid(**between)
    if kind == "lightgbm":
        return ul.trees.lightgbm(where, rounds=ROUNDS, num_leaves=LEAVES, learning_rate=RATE)
    if kind == "xgboost":
        return ul.trees.xgboost(where, rounds=ROUNDS, max_depth=4, learning_rate=RATE)
    return ul.trees.sklearn(where, estimators()[kind], classes=2)


def recipe_of(kind: str, large: bool) -> ul.Recipe:
    """Return the recipe of a kind; the grid is declared public."""
    samples, holdout = table(large)
    made, train = model(kind, large)
    loss = "cross_entropy" if kind == "forest" else "binary_logistic"
    bare = ul.Recipe(made, samples, holdout, loss, train=train)
    from unlearning.model.parts import digest_below, parts_of  # noqa: PLC0415

    return ul.Recipe(made, samples, holdout, loss, train=train, public={"train": digest_below(parts_of(bare))})


def plain_fit(kind: str, large: bool) -> tuple[float, float]:
    """Return the CPU seconds of the library's own fit, and its AUC on the holdout."""
    import lightgbm  # noqa: PLC0415
    import xgboost  # noqa: PLC0415

    samples, (inputs, targets) = table(large)
    x, y = (each.numpy() for each in samples.tensors())
    fits: dict[str, Any] = {
        "lightgbm": lightgbm.LGBMClassifier(
            n_estimators=ROUNDS, num_leaves=LEAVES, learning_rate=RATE, n_jobs=1, verbose=-1
        ),
        "xgboost": xgboost.XGBClassifier(n_estimators=ROUNDS, max_depth=4, learning_rate=RATE, n_jobs=1),
        **estimators(),
    }
    start = time.process_time()
    fits[kind].fit(x, y)
    seconds = time.process_time() - start
    return seconds, float(roc_auc_score(targets, fits[kind].predict_proba(inputs.numpy())[:, 1]))


def cpu() -> float:
    """Return the CPU seconds so far of this process, and of the server of fresh processes with all its forks."""
    fields = Path(f"/proc/{server().process.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:15])) / TICK


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    start = cpu()
    return act(), cpu() - start


def world_in(folder: Path, large: bool) -> World:
    place = folder / "recipes"
    place.mkdir()
    for kind in KINDS:
        (place / f"{kind}.py").write_text(
            f"from benchmarks.trees import recipe_of\n\n\ndef recipe():\n    return recipe_of({kind!r}, {large})\n"
        )
    settings = Settings(home=folder, database_url=f"sqlite:///{folder}/trees.db", recipes=place, device="cpu")
    ensure_secrets(settings)
    migrate(Database(settings.database_url))
    return open_world(settings)


def measured(world: World, kind: str, shards: int, deletions: int) -> dict[str, Any]:
    """Return CPU seconds of a first version and of each deletion, the AUC, and whether the files are equal."""
    method, options = ("retrain", {}) if shards == 1 else ("shards", {"shards": shards})
    name = f"{kind}-{shards}"
    model_id, first = timed(lambda: world.live(kind, method, name=name, options=options))
    recipe = recipes.load(world.settings.recipes, kind).recipe
    made: Any = recipe.model
    inputs, targets = recipe.holdout
    scores = made.predict(world.storage.store.read(world.head(model_id).checkpoint), inputs)
    scores = scores[:, 1] if scores.dim() == 2 else scores
    people = random.Random(shards).sample(sorted(name for (name,) in recipe.samples.people.distinct()), deletions)
    spent = []
    for person in people:
        world.delete(person, models=(name,))
        spent.append(timed(lambda: world.work(model_id))[1])
    for person in people:
        world.delete(person)
    never = world.register(kind, method, name=f"{name}-never", options=options, leave_out_forgotten=True)
    world.work(never)
    equal = world.head(never).checkpoint == world.head(model_id).checkpoint
    return {"first": first, "deletions": spent, "auc": float(roc_auc_score(targets, scores)), "equal": equal}


def rows(deletions: int = DELETIONS, kinds: Sequence[str] = KINDS, large: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a row for each library and each S: the CPU seconds of a deletion, over those of one plain fit."""
    for kind in kinds:
        plain, auc = plain_fit(kind, large)
        for shards in (4,) if large else SHARDS:
            with tempfile.TemporaryDirectory() as folder:  # requests of one model leave the others alone
                found = measured(world_in(Path(folder), large), kind, shards, deletions)
            mean = sum(found["deletions"]) / len(found["deletions"])
            yield {
                "name": f"{kind}, S = {shards}: a deletion through the service, in CPU seconds",
                "value": mean,
                "target": f"{0.5 * plain + 2:.1f}" if shards == 4 else "reported",
                "unit": "s",
                "met": mean <= 0.5 * plain + 2 if shards == 4 else None,
                "sides": {
                    "plain_fit_cpu_s": plain,
                    "plain_fit_auc": auc,
                    "first_version_cpu_s": found["first"],
                    "auc": found["auc"],
                    "equal_to_cold": found["equal"],
                    "deletions": len(found["deletions"]),
                },
            }


def main(deletions: int, kinds: Sequence[str], large: bool) -> None:
    print("| | S | plain fit | first version | a deletion | AUC (plain fit) | equal to a cold training |")
    print("|---|---|---|---|---|---|---|")
    for row in rows(deletions, kinds, large):
        kind, shards = row["name"].split(":")[0].split(", S = ")
        sides = row["sides"]
        print(
            f"| {kind} | {shards} | {sides['plain_fit_cpu_s']:.1f} s | {sides['first_version_cpu_s']:.1f} s | "
            f"{row['value']:.1f} s | {sides['auc']:.4f} ({sides['plain_fit_auc']:.4f}) | "
            f"{'yes' if sides['equal_to_cold'] else 'NO'}, after {sides['deletions']} deletions |",
            flush=True,
        )


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--large"]
    main(int(given[0]) if given else DELETIONS, given[1:] or KINDS, "--large" in sys.argv)
