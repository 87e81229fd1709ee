"""Trainings without some people, in a process of its own: the digest of each, as JSON. ``... cold KIND``."""

from __future__ import annotations

import hashlib
import json
import random
import sys

import torch

import unlearning as ul
from tests.unlearning.trees.tables import KINDS
from unlearning.artefact import bytes_of
from unlearning.methods.shards import Shards
from unlearning.model.problem import Problem
from unlearning.quality.simulate import forget_set, left_by
from unlearning.types import Examples, Learned

PEOPLE, SINGLE, GROUPS = 140, 100, 10
METHOD = Shards(4, 1)


def setting(kind: str) -> tuple[Problem, Examples]:
    (model, train), loss, seen = KINDS[kind]
    drawn = torch.Generator().manual_seed(9)
    x = torch.randn(1400, 4, generator=drawn, dtype=torch.float64)
    x[:, 3] = (2 * x[:, 3]).round().clamp(0, 4)
    y = seen(x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * torch.randn(1400, generator=drawn))
    people = [f"p{row % PEOPLE:03d}" for row in range(len(x))]
    samples = ul.Samples([str(row) for row in range(len(x))], people, x, y)
    problem = Problem(METHOD.recipe(ul.Recipe(model, samples, (x[:10], y[:10]), loss, train=train)))
    return problem, samples.examples()


def leaving(examples: Examples) -> list[list[str]]:
    """A hundred people, one each, and ten groups of two to twenty."""
    names, draw = sorted(examples.people.distinct()), random.Random(3)
    return [[name] for name in names[:SINGLE]] + [draw.sample(names, draw.randint(2, 20)) for _ in range(GROUPS)]


def cold(kind: str) -> list[str]:
    problem, examples = setting(kind)
    found = []
    for people in leaving(examples):
        left = left_by(examples, forget_set(examples, people))
        state = METHOD.prepare(problem, left, Learned(problem.initial()))
        found.append(hashlib.sha256(bytes_of(state.weights)).hexdigest())
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(cold(sys.argv[1])))
