"""Parts of a training that are made in the test's own process, as worlds make them in the service.

What a part publishes is one file: the tensors of its module, and of several members theirs under their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul
from unlearning.artefact import bytes_of, tensor_of
from unlearning.methods.shards import Merge
from unlearning.model.descent.fitted import Fitted
from unlearning.model.method import Method
from unlearning.model.phases import Phase
from unlearning.model.problem import Problem, build
from unlearning.model.training import train
from unlearning.types import Examples, ForgetSet, Learned, Progress, State

PEOPLE = tuple(f"person-{k:02}" for k in range(30))


@dataclass(frozen=True)
class Part:
    """What a training is given: its module, with the weights that it starts from, and the samples of the part."""

    name: str
    module: nn.Module
    inputs: Tensor
    targets: Tensor


@dataclass
class TrainedHere:
    """Makes the parts of a training (``Fresh``) by ``train``, and notes their names."""

    member: ul.Recipe
    train: Callable[[Part], None]
    made: list[str] = field(default_factory=list)

    def announce(self, chains: Sequence[Sequence[tuple[object, Examples]]]) -> None:
        assert all(len(chain) for chain in chains)

    def __call__(self, part: object, examples: Examples, start: Fitted | None, progress: Progress) -> Fitted:
        device = examples.inputs.device
        if isinstance(part, Merge):
            assert start is not None
            files = {number: load(bytes_of(file)) for number, file in start.tensors.items() if len(file)}
            named = {f"{number}.{name}": value for number, file in files.items() for name, value in file.items()}
            return Fitted(tensor_of(save(named)).to(device))
        name = part.name if isinstance(part, Phase) else "all"
        self.made.append(name)
        module = build(self.member, 0)
        if start is not None and len(start.weights):
            module.load_state_dict(load(bytes_of(start.weights)))
        with torch.random.fork_rng():
            torch.manual_seed(sum(name.encode()))
            self.train(Part(name, module, examples.inputs.cpu(), examples.targets.cpu()))
        progress(1.0)
        return Fitted(tensor_of(save(module.state_dict())).to(device))


def in_files(member: ul.Recipe) -> ul.Recipe:
    """Return the recipe whose model is the published file; of several members it answers by the mean."""
    return replace(member, model=ul.Artefact(partial(answers, member), continues=True))


def answers(member: ul.Recipe, data: bytes, inputs: Tensor) -> Tensor:
    by_member: dict[str, dict[str, Tensor]] = {}
    alone = build(member, 0)
    for name, value in load(data).items():
        number, _, rest = ("0", "", name) if name in alone.state_dict() else name.partition(".")
        by_member.setdefault(number, {})[rest] = value
    outputs = []
    for tensors in by_member.values():
        module = build(member, 0).eval()
        module.load_state_dict(tensors)
        outputs.append(module.to(inputs.device)(inputs))
    return torch.stack(outputs).mean(dim=0)


def epochs(part: Part, count: int = 3, size: int = 40) -> None:
    """AdamW with a falling step, noise on the inputs, and whatever the module has: batch normalisation, dropout."""
    part.module.train()
    optimizer = torch.optim.AdamW(part.module.parameters(), lr=0.01)
    for epoch in range(count):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 - epoch / count)
        for batch in torch.randperm(len(part.inputs)).split(size):
            if len(batch) > 1:
                x = part.inputs[batch] + 0.05 * torch.randn_like(part.inputs[batch])
                optimizer.zero_grad()
                F.cross_entropy(part.module(x), part.targets[batch]).backward()
                optimizer.step()


def by_settings(member: ul.Recipe) -> Callable[[Part], None]:
    """Return a training by the recipe's settings, which goes on from the module's weights."""

    def trained(part: Part) -> None:
        problem = Problem(replace(member, weights=part.module.state_dict()))
        places = torch.arange(len(part.inputs))
        examples = Examples.of(places, part.inputs, part.targets, [str(place) for place in places.tolist()])
        part.module.load_state_dict(problem.tensors(train(problem, examples).weights))

    return trained


def samples() -> ul.Samples:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(120, 6, generator=generator)
    subjects = [(PEOPLE[index % len(PEOPLE)], *PEOPLE[index % 29 :: 31][: index % 8 == 0]) for index in range(120)]
    return ul.Samples([f"sample-{index}" for index in range(120)], subjects, x, x[:, :3].argmax(dim=1))


def network(given: ul.Samples) -> ul.Recipe:
    """A network with batch normalisation and dropout."""
    return ul.Recipe(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)),
        samples=given,
        holdout=given.tensors(),
        loss="cross_entropy",
        training=ul.Training(epochs=3, batch_size=40, learning_rate=0.3, weight_decay=1e-3),
    )


def problem_of(member: ul.Recipe, training: Callable[[Part], None] = epochs) -> tuple[Problem, TrainedHere]:
    """Return the problem whose parts ``training`` makes here, and what makes them."""
    problem = Problem(in_files(member))
    problem.fresh = here = TrainedHere(member, training)
    return problem, here


def prepared(
    method: Method, member: ul.Recipe, examples: Examples, training: Callable[[Part], None] = epochs
) -> tuple[Problem, State]:
    problem, _ = problem_of(member, training)
    learned = Learned(problem.initial()) if method.trains else train(problem, examples)
    return problem, method.prepare(problem, examples, learned)


def without(examples: Examples, people: set[str]) -> tuple[ForgetSet, Examples]:
    """Forget every sample that one of ``people`` has a part in."""
    gone = [place for place, subjects in enumerate(examples.subjects) if not people.isdisjoint(subjects)]
    positions = examples.positions[gone]
    holders = frozenset(examples.people[place] for place in gone)
    return ForgetSet(holders, tuple(positions.tolist())), examples.without(positions)


def names(examples: Examples) -> list[str]:
    return sorted({person for subjects in examples.subjects for person in subjects})
