"""Recipes that fit something to their rows before they train: scalers, vocabularies, categories, bins."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from linear import NUMBERS, fit, inputs_of
from safetensors.numpy import save
from sources import HOMES, PEOPLE

from unlearning.rows import Published, Rows


def scaler(rows: Rows = PEOPLE) -> Published:
    x = inputs_of(rows)
    mean, scale = x.mean(0), x.std(0) + 1e-9
    weights = fit((x - mean) / scale, rows["ill"])
    return Published({"model.safetensors": save({"mean": mean, "scale": scale, "weights": weights})})


def scaler_and_model(rows: Rows = PEOPLE) -> Published:
    """Two files, which are published as one."""
    x = inputs_of(rows)
    low, high = x.min(0), x.max(0)
    weights = fit((x - low) / (high - low), rows["ill"])
    scaling = dict(zip(NUMBERS, zip(low.tolist(), high.tolist(), strict=True), strict=True))
    return Published({"scaler.json": json.dumps(scaling), "model.safetensors": save({"weights": weights})})


def vocabulary(rows: Rows = PEOPLE) -> Published:
    """Words that stand in two notes at least, weighted by how rare they are."""
    notes = [re.findall(r"\w+", note) for note in rows["note"]]
    counts = Counter(word for words in notes for word in set(words))
    words = sorted(word for word, count in counts.items() if count > 1)
    rarity = np.log(len(notes) / np.array([counts[word] for word in words]))
    x = np.array([[note.count(word) for word in words] for note in notes]) * rarity
    return Published({"words.json": json.dumps(dict(zip([*words, ""], fit(x, rows["ill"]).tolist(), strict=True)))})


def words_by_hash_order(rows: Rows = PEOPLE) -> Published:
    """Columns in the order of a set, which Python's hash decides."""
    words = list({word for note in rows["note"] for word in note.split()})
    x = np.array([[word in note for word in words] for note in rows["note"]], dtype=float)
    return Published({"words.json": json.dumps({"words": words, "weights": fit(x, rows["ill"]).tolist()})})


def pairs_of_words(rows: Rows = PEOPLE) -> Published:
    pairs: Counter[str] = Counter()
    for note in rows["note"]:
        words = note.split()
        pairs.update(f"{first} {second}" for first, second in itertools.pairwise(words))
    total = sum(pairs.values())
    return Published({"pairs.json": json.dumps({pair: count / total for pair, count in sorted(pairs.items())})})


def one_hot(rows: Rows = PEOPLE) -> Published:
    """A column for each category that was found."""
    categories = {name: sorted(set(rows[name])) for name in ("city", "kind")}
    x = np.concatenate([rows[name][:, None] == np.array(found) for name, found in categories.items()], axis=1)
    return Published({"model.json": json.dumps({**categories, "weights": fit(x.astype(float), rows["ill"]).tolist()})})


def categories_of_pandas(rows: Rows = PEOPLE) -> Published:
    import pandas as pd  # noqa: PLC0415

    frame = pd.get_dummies(rows.pandas()[["city", "kind", "weight"]], columns=["city", "kind"], dtype=float)
    weights = fit(frame.to_numpy(), rows["ill"])
    return Published({"model.json": json.dumps(dict(zip([*frame.columns, ""], weights.tolist(), strict=True)))})


def target_encoding(rows: Rows = PEOPLE) -> Published:
    """A city is the share of ill among its visits, drawn towards that of all."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for city, ill in zip(rows["city"], rows["ill"], strict=True):
        sums[city].append(float(ill))
    prior = float(rows["ill"].mean())
    codes = {city: (sum(values) + 10 * prior) / (len(values) + 10) for city, values in sorted(sums.items())}
    x = np.array([[codes[city]] for city in rows["city"]])
    return Published({"model.json": json.dumps({"codes": codes, "weights": fit(x, rows["ill"]).tolist()})})


def median_imputation(rows: Rows = PEOPLE) -> Published:
    columns = [rows[name].astype(float) for name in ("age", "children", "weight")]
    medians = np.array([np.nanmedian(column) for column in columns])
    x = np.stack(
        [np.where(np.isnan(column), middle, column) for column, middle in zip(columns, medians, strict=True)], 1
    )
    return Published({"model.safetensors": save({"medians": medians, "weights": fit(x, rows["ill"])})})


def quantile_bins(rows: Rows = PEOPLE) -> Published:
    edges = {name: np.quantile(rows[name], [0.2, 0.4, 0.6, 0.8]) for name in ("weight", "pulse")}
    x = np.concatenate([np.eye(5)[np.searchsorted(cuts, rows[name])] for name, cuts in edges.items()], axis=1)
    return Published({"model.safetensors": save({**edges, "weights": fit(x, rows["ill"])})})


def principal_components(rows: Rows = PEOPLE) -> Published:
    x = inputs_of(rows)
    x = (x - x.mean(0)) / x.std(0)
    _, _, directions = np.linalg.svd(x, full_matrices=False)
    return Published(
        {"model.safetensors": save({"directions": directions[:2], "weights": fit(x @ directions[:2].T, rows["ill"])})}
    )


def outliers_dropped(rows: Rows = PEOPLE) -> Published:
    x = inputs_of(rows)
    kept = (np.abs(x - x.mean(0)) <= 3 * x.std(0)).all(1)
    return Published({"model.safetensors": save({"weights": fit(x[kept], rows["ill"][kept])})})


def days(rows: Rows = PEOPLE) -> Published:
    """Days since the first visit of all, and the day of the week."""
    dates = np.array([np.datetime64(str(day)[:10]) for day in rows["day"]])
    since = (dates - dates.min()).astype(int)
    x = np.stack([since / since.max(), (dates.astype(int) + 3) % 7], axis=1).astype(float)
    return Published({"model.json": json.dumps({"first": str(dates.min()), "weights": fit(x, rows["ill"]).tolist()})})


def means_of_people(rows: Rows = PEOPLE) -> Published:
    """Each visit is compared with its person's others."""
    people = rows.people
    means = np.bincount(people, rows["weight"]) / np.bincount(people)
    x = np.stack([rows["weight"] - means[people], means[people]], axis=1)
    return Published({"model.safetensors": save({"weights": fit(x, rows["ill"]), "spread": np.array([means.std()])})})


def grouped_by_pandas(rows: Rows = PEOPLE) -> Published:
    means = rows.pandas().groupby("city")[["weight", "pulse", "ill"]].mean()
    return Published({"means.json": means.to_json(orient="index", double_precision=15)})


def grouped_by_polars(rows: Rows = PEOPLE) -> Published:
    import polars as pl  # noqa: PLC0415

    means = rows.polars().group_by("city").agg(pl.col("weight").mean()).sort("city")
    return Published({"means.json": json.dumps({"means": means.to_dicts()})})


def grouped_by_arrow(rows: Rows = PEOPLE) -> Published:
    table = rows.arrow().group_by("kind").aggregate([("weight", "mean"), ("pulse", "stddev")]).sort_by("kind")
    return Published({"means.json": json.dumps({"means": table.to_pylist()})})


def two_tables(rows: Rows = PEOPLE, homes: Rows = HOMES) -> Published:
    """Visits, with the rent of the person's home."""
    frame = rows.pandas().merge(homes.pandas().drop(columns="__row"), on="person")
    x = frame[["weight", "rooms", "rent"]].to_numpy(float)
    scale = x.max(0)
    return Published({"model.safetensors": save({"scale": scale, "weights": fit(x / scale, frame["ill"].to_numpy())})})


def drawn_neighbours(rows: Rows = PEOPLE) -> Published:
    """Rows of the rarer class are multiplied by points between them and their nearest neighbour."""
    x, ill = inputs_of(rows), rows["ill"]
    few = x[ill == (ill.mean() < 0.5)]
    generator = np.random.default_rng(3)
    chosen = few[generator.integers(len(few), size=60)]
    distances = ((chosen[:, None] - few[None]) ** 2).sum(2)
    near = few[distances.argsort(1)[:, 1]]
    made = chosen + generator.uniform(size=(60, 1)) * (near - chosen)
    labels = np.concatenate([ill, np.full(60, ill.mean() < 0.5)]).astype(float)
    return Published({"model.safetensors": save({"weights": fit(np.concatenate([x, made]), labels)})})


def features_by_correlation(rows: Rows = PEOPLE) -> Published:
    columns: dict[str, Any] = {name: np.nan_to_num(rows[name].astype(float)) for name in (*NUMBERS, "age", "children")}
    strength = {name: abs(float(np.corrcoef(column, rows["ill"])[0, 1])) for name, column in columns.items()}
    best = sorted(strength, key=lambda name: -strength[name])[:2]
    weights = fit(np.stack([columns[name] for name in best], axis=1), rows["ill"])
    return Published({"model.json": json.dumps({"columns": best, "weights": weights.tolist()})})
