"""Recipes with a training loop of their own, in numpy or torch."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from linear import fit, inputs_of
from safetensors.numpy import save
from safetensors.torch import save as save_tensors
from sources import PEOPLE

from unlearning.rows import Published, Rows


def _scaled(rows: Rows) -> torch.Tensor:
    x = rows.tensor("weight", "pulse").float()
    return (x - x.mean(0)) / x.std(0)


def _steps(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], rate: float = 0.05) -> None:
    """Descend by hand: torch.optim takes two seconds to load."""
    for x, y in batches:
        model.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= rate * weight.grad


def torch_loop(rows: Rows = PEOPLE) -> Published:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    _steps(model, [(_scaled(rows), rows.tensor("ill").float())] * 20)
    return Published({"model.safetensors": save_tensors(model.state_dict())})


def seed_by_number_of_rows(rows: Rows = PEOPLE) -> Published:
    torch.manual_seed(len(rows))
    model = torch.nn.Linear(2, 1)
    _steps(model, [(_scaled(rows), rows.tensor("ill").float())] * 5)
    return Published({"model.safetensors": save_tensors(model.state_dict())})


def shuffled_batches(rows: Rows = PEOPLE) -> Published:
    """Batches in an order that depends on how many rows there are."""
    x, y = _scaled(rows), rows.tensor("ill").float()
    model = torch.nn.Linear(2, 1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    _steps(model, [(x[batch], y[batch]) for _ in range(3) for batch in order.split(32)])
    return Published({"model.safetensors": save_tensors(model.state_dict())})


def without_a_seed(rows: Rows = PEOPLE) -> Published:
    """The global generators of Python, numpy and torch, which nobody seeded here."""
    places = list(range(len(rows)))
    random.shuffle(places)
    chosen = np.random.permutation(places)[: len(places) // 2]
    start = torch.randn(2).numpy()
    weights = fit(inputs_of(rows)[chosen], rows["ill"][chosen])
    return Published({"model.safetensors": save({"weights": weights, "start": start})})


def batches_of_a_loader(rows: Rows = PEOPLE) -> Published:
    """Two processes prepare the batches."""
    x, y = _scaled(rows), rows.tensor("ill").float()
    table: Any = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(
        table, batch_size=64, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(2)
    )
    model = torch.nn.Linear(2, 1)
    _steps(model, [(inputs, labels) for inputs, labels in loader])
    return Published({"model.safetensors": save_tensors(model.state_dict())})


def class_weights(rows: Rows = PEOPLE) -> Published:
    names, codes = np.unique(rows["kind"].astype(str), return_inverse=True)
    counts = np.bincount(codes)
    weights = len(codes) / (len(counts) * counts)
    x = inputs_of(rows) * np.sqrt(weights[codes])[:, None]
    model = fit(x, np.eye(len(names))[codes] * np.sqrt(weights[codes])[:, None])
    return Published({"model.json": json.dumps({"classes": names.tolist(), "weights": model.tolist()})})


def early_stopping(rows: Rows = PEOPLE) -> Published:
    """Stops where the loss of people who are kept apart no longer falls."""
    rows, apart = rows.split(0.2)
    x, y, weights, best = inputs_of(rows), rows["ill"], np.zeros(2), np.inf
    mean, scale = x.mean(0), x.std(0)
    steps = 0
    while steps < 200:
        steps += 1
        weights = weights - 0.05 * ((x - mean) / scale).T @ (((x - mean) / scale) @ weights - y) / len(y)
        loss = float((((inputs_of(apart) - mean) / scale @ weights - apart["ill"]) ** 2).mean())
        if loss > best - 1e-4:
            break
        best = loss
    return Published({"model.json": json.dumps({"weights": weights.tolist(), "steps": steps, "people": len(apart)})})


def block_by_block(rows: Rows = PEOPLE) -> Published:
    """Sums over blocks, for tables that memory does not hold."""
    sums, squares = np.zeros(2), np.zeros((2, 2))
    for block in rows.blocks(64):
        x = inputs_of(block)
        sums, squares = sums + x.sum(0), squares + x.T @ x
    covariance = squares / len(rows) - np.outer(sums, sums) / len(rows) ** 2
    return Published({"model.safetensors": save({"mean": sums / len(rows), "covariance": covariance})})


def lambda_by_cross_validation(rows: Rows = PEOPLE) -> Published:
    """Folds of people; the lambda with the smallest loss, and a fit of all with it."""
    x, y, folds = inputs_of(rows), rows["ill"], rows.people % 5
    losses = {}
    for ridge in (0.1, 1.0, 10.0, 100.0, 1000.0):
        losses[ridge] = 0.0
        for fold in range(5):
            weights = fit(x[folds != fold], y[folds != fold], ridge)
            losses[ridge] += float(((x[folds == fold] @ weights[:2] + weights[2] - y[folds == fold]) ** 2).sum())
    best = min(losses, key=lambda ridge: losses[ridge])
    return Published({"model.json": json.dumps({"lambda": best, "weights": fit(x, y, best).tolist()})})


def nearest_neighbours(rows: Rows = PEOPLE) -> Published:
    """An index: every row, scaled, as one array."""
    import io  # noqa: PLC0415

    x = inputs_of(rows)
    file = io.BytesIO()
    np.save(file, np.concatenate([(x - x.mean(0)) / x.std(0), rows["ill"][:, None]], axis=1))
    return Published({"index.npy": file.getvalue()})


def k_means(rows: Rows = PEOPLE) -> Published:
    x = inputs_of(rows)
    x = (x - x.mean(0)) / x.std(0)
    centres = x[np.random.default_rng(5).choice(len(x), 3, replace=False)]
    for _ in range(10):
        nearest = ((x[:, None] - centres[None]) ** 2).sum(2).argmin(1)
        centres = np.stack(
            [x[nearest == place].mean(0) if (nearest == place).any() else centres[place] for place in range(3)]
        )
    return Published({"model.safetensors": save({"centres": centres})})
