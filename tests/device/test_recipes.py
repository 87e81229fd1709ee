"""Trainings, states of cards and comparators on a device."""

from __future__ import annotations

from dataclasses import replace

import torch

from expunge_lab.experiment.comparators.newton_step import infinitesimal_jackknife, newton_step
from expunge_workers import doctor
from expunge_workers.runtime.device import described
from expunge_workers.storage.manifest import replayable, surroundings
from tests.contract.cases import network, softmax
from unlearning.model.global_state import torch_draws_from
from unlearning.model.problem import Problem, build
from unlearning.model.training import train
from unlearning.types import Examples

HERE = torch.device("pretend")


def test_the_random_states_of_a_device_are_put_back() -> None:
    torch.ones(1, device=HERE)
    before = torch.pretend.get_rng_state()
    with torch_draws_from(5):
        first = torch.rand(3, device=HERE)
    build(network(), 7)
    assert torch.equal(torch.pretend.get_rng_state(), before)
    with torch_draws_from(5):
        assert torch.equal(torch.rand(3, device=HERE), first)


def test_comparators_compute_on_the_device() -> None:
    recipe = softmax()
    found = []
    for place in ("cpu", HERE):
        problem, examples = Problem(recipe, place, torch.float64), recipe.samples.examples(device=place)
        weights = train(problem, examples).weights
        steps = (
            step(problem, weights, examples, [0, 5]).change.cpu() for step in (newton_step, infinitesimal_jackknife)
        )
        found.append(torch.cat([*steps]))
    assert torch.allclose(*found, rtol=1e-6, atol=1e-9)


def test_mixed_precision_trains_on_a_device_that_is_no_cuda() -> None:
    recipe = network(mixed_precision=True, epochs=1)
    learned = train(Problem(recipe, HERE), recipe.samples.examples(device=HERE))
    assert bool(torch.isfinite(learned.weights).all()) and learned.weights.device.type == "pretend"


def test_a_manifest_names_the_card_and_is_not_replayed_on_another_device() -> None:
    here, host = surroundings(HERE), surroundings(torch.device("cpu"))
    assert (here["device"], here["card"]) == ("pretend", "Pretend 1")
    assert replayable(here, HERE) and not replayable(here, torch.device("cpu")) and not replayable(host, HERE)


def test_the_doctor_names_the_card() -> None:
    found = doctor.device("pretend")
    assert found.well and found.what == "Workers compute on pretend Pretend 1; 4.0 of 4.0 GiB are free."
    assert described(HERE) == "pretend Pretend 1" and described(torch.device("cpu")) == "cpu"


def test_samples_that_are_read_by_blocks_arrive_on_the_device() -> None:
    whole = softmax().samples.examples(device=HERE)
    apart = Examples(whole.positions, replace(whole.rows), whole.people, whole.subjects, whole.index)
    inputs, targets = apart.pick(torch.tensor([3, 1], device=HERE))
    assert inputs.device.type == targets.device.type == "pretend"
