"""What every method must keep, whatever it does. Parametrised over ``methods.NAMES`` by way of ``cases.py``."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contract.cases import CASES, PEOPLE, Case, all_cases
from unlearning.methods import NAMES
from unlearning.model.method import Method
from unlearning.model.training import train
from unlearning.quality.distance_left import distance_left
from unlearning.types import Examples, ForgetSet, Forgotten, Learned, Need, Refused, State, Vectors


def each_of(cases: list[Case]) -> pytest.MarkDecorator:
    """Run a test with each of these cases."""
    drill = {True: [pytest.mark.drill], False: []}
    params = [pytest.param(case, marks=drill[case.drill], id=f"{case.method}-{case.label}") for case in cases]
    return pytest.mark.parametrize("case", params)


ALL = each_of(all_cases())
DEVICE = torch.device(os.environ.get("EXPUNGE_CONTRACT_DEVICE", "cpu"))
"""tests/test_pretend_device.py runs these tests again on another"""
GONE = ("person-c", "person-h")
LATER = ("person-e",)


class Scene:
    """A trained model with a method's state, ready to forget."""

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
        recipe = case.recipe()
        self.case = case
        self.method: Method = case.build()
        self.problem = case.problem(recipe, DEVICE, dtype)
        self.examples: Examples = recipe.samples.examples(device=DEVICE)
        self.learned: Learned = train(self.problem, self.examples)
        self.progress: list[float] = []
        self.state: State = self.method.prepare(self.problem, self.examples, self.learned, self.progress.append)

    def forget(self, people: tuple[str, ...], state: State | None = None, already: tuple[str, ...] = ()) -> Forgotten:
        """One update, given what the service gives: only the forgotten's vectors, samples only where needed."""
        before = state or self.state
        forget = self.case.forget_set(self.examples, people)
        past = self.case.forget_set(self.examples, already)
        everyone = self.examples.without(torch.tensor(past.positions, dtype=torch.int64))
        vectors = {person: self.state.vectors[person] for person in people if person in self.state.vectors}
        given = loaded(before)
        retain = self.case.retain_set(everyone, forget)
        draws = torch.Generator(DEVICE).manual_seed(5)
        return self.method.forget(self.problem, given, replace(forget, vectors=Vectors(vectors)), retain, draws)

    @cached_property
    def gone(self) -> Forgotten:
        """The update that several tests look at."""
        return self.forget(GONE)


def loaded(state: State) -> State:
    """Return the state as the service loads it: every tensor was on the host, and is put on the device."""
    moved = {name: tensor.cpu().to(DEVICE) for name, tensor in state.tensors.items()}
    return State(state.weights.cpu().to(DEVICE), moved, state.facts)


_SCENES: dict[tuple[str, str], Scene] = {}


def scene_of(case: Case) -> Scene:
    """Return the case's scene, made once: no method changes it, which a test below shows on one of its own."""
    name = (case.method, case.label)
    if name not in _SCENES:
        _SCENES[name] = Scene(case)
    return _SCENES[name]


def digest(state: State) -> str:
    """A digest of every bit of a state, independent of the order of its mappings."""
    whole = hashlib.sha256()
    tensors = {"weights": state.weights, **state.tensors} | {f"v:{key}": item for key, item in state.vectors.items()}
    for name in sorted(tensors):
        whole.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode() + raw(tensors[name]))
    whole.update(json.dumps(state.facts, sort_keys=True).encode())
    return whole.hexdigest()


def raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def needing(need: Need) -> list[Case]:
    return [case for case in all_cases() if need in case.build().needs]


def test_every_method_has_a_case_and_names_itself() -> None:
    assert set(CASES) <= set(NAMES)
    assert {case.method for case in all_cases()} == set(NAMES)
    assert all(case.build().name == case.method for case in all_cases())


@ALL
def test_an_empty_forget_set_returns_the_state_itself(case: Case) -> None:
    scene = scene_of(case)
    nobody = ForgetSet(frozenset(), ())
    forgotten = scene.method.forget(scene.problem, scene.state, nobody, scene.examples, torch.Generator(DEVICE))
    assert forgotten.state is scene.state


@ALL
def test_forgetting_moves_the_weights(case: Case) -> None:
    scene = scene_of(case)
    assert not torch.equal(scene.gone.state.weights, scene.state.weights)


@ALL
def test_the_order_of_the_forget_set_does_not_matter(case: Case) -> None:
    scene = scene_of(case)
    assert digest(scene.forget(PEOPLE[2:7]).state) == digest(scene.forget(PEOPLE[6:1:-1]).state)


FIRST = {case.method: case.label for case in reversed(all_cases()) if not case.drill}
"""of each method, the first of its cases"""


@pytest.mark.parametrize("labels", [[*FIRST.items()], pytest.param([], marks=pytest.mark.drill)], ids=["first", "all"])
def test_bits_do_not_depend_on_the_hash_seed_of_the_process(labels: list[tuple[str, str]]) -> None:
    """Sets of strings iterate in an order that each Python process draws anew."""
    cases = [case for case in all_cases() if not labels or (case.method, case.label) in labels]
    code = (
        "from tests.contract.test_contract import *\n"
        f"for case in all_cases():\n    if not {labels!r} or (case.method, case.label) in {labels!r}:\n"
        "        print(case.method, case.label, digest(Scene(case).forget(PEOPLE[2:7]).state))"
    )
    another = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": another, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert torch.get_num_threads() == 1, "with more threads other bits come out than in the other process"
    here = [f"{each.method} {each.label} {digest(scene_of(each).forget(PEOPLE[2:7]).state)}" for each in cases]
    assert there.splitlines() == here
    assert {each.method for each in cases} == set(NAMES)


@ALL
def test_a_state_that_was_stored_and_loaded_forgets_alike(case: Case) -> None:
    scene = scene_of(case)
    stored = {name: value.cpu().numpy().copy() for name, value in scene.state.tensors.items()}
    opened = State(
        scene.state.weights.clone(),
        {name: torch.from_numpy(value) for name, value in stored.items()},
        json.loads(json.dumps(scene.state.facts, allow_nan=False)),
    )
    assert digest(scene.forget(GONE, opened).state) == digest(scene.gone.state)


@ALL
def test_a_second_run_repeats_bit_for_bit_and_changes_neither_its_arguments_nor_global_random_state(case: Case) -> None:
    first = scene_of(case)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    scene = Scene(case)
    state, inputs, weights = digest(scene.state), raw(scene.examples.inputs), raw(scene.learned.weights)
    forgotten = scene.forget(GONE)
    assert torch.equal(torch.get_rng_state(), before)
    assert state == digest(first.state)
    assert digest(forgotten.state) == digest(first.gone.state)
    assert digest(scene.state) == state
    assert raw(scene.examples.inputs) == inputs
    assert raw(scene.learned.weights) == weights


@ALL
def test_progress_rises_to_one(case: Case) -> None:
    shares = scene_of(case).progress
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert shares[0] >= 0.0


@ALL
def test_nothing_of_the_forgotten_stays_in_the_state(case: Case) -> None:
    scene = scene_of(case)
    forgotten = scene.gone
    undeclared = {
        name: value for name, value in forgotten.state.tensors.items() if not name.startswith(case.remembers or ("\0",))
    }
    everything = b"".join(raw(value) for value in undeclared.values()) + raw(forgotten.state.weights)
    texts = json.dumps(forgotten.state.facts) + json.dumps(sorted(undeclared)) + json.dumps(forgotten.evidence)
    assert not set(forgotten.state.vectors) & set(GONE)
    assert not any(name in texts for name in GONE)
    for sample in scene.examples.only(torch.tensor(scene.case.forget_set(scene.examples, GONE).positions)).inputs:
        # The last feature is the same for everyone: a sample is known by the others.
        assert raw(sample[:-1]) not in everything
        assert raw(sample[:-1].double()) not in everything


@ALL
def test_a_later_release_continues_from_an_earlier_one(case: Case) -> None:
    scene = scene_of(case)
    first = scene.gone
    second = scene.forget(LATER, first.state, already=GONE)
    assert bool(torch.isfinite(second.state.weights).all())
    assert not torch.equal(second.state.weights, first.state.weights)
    assert set(second.state.tensors) == set(first.state.tensors)
    assert json.loads(json.dumps(second.evidence, allow_nan=False)) == dict(second.evidence)


@each_of([case for case in all_cases() if case.near is not None])
def test_the_result_is_near_retraining(case: Case) -> None:
    """In one update, and in two: the reference is a training that never saw the forgotten."""
    scene = Scene(case, torch.float64)
    first = scene.forget(GONE)
    second = scene.forget(LATER, first.state, already=GONE)
    for weights, people in ((first.state.weights, GONE), (second.state.weights, GONE + LATER)):
        omit = case.forget_set(scene.examples, people).positions
        retrained = train(scene.problem, scene.examples, omit=omit, reference=case.reference).weights
        assert case.near is not None
        assert distance_left(scene.learned.weights, weights, retrained) < case.near


@ALL
def test_forgetting_everyone_is_refused(case: Case) -> None:
    scene = scene_of(case)
    with pytest.raises(Refused):
        scene.forget(PEOPLE)


@each_of(needing(Need.RETAINED))
def test_missing_retained_samples_are_refused(case: Case) -> None:
    scene = scene_of(case)
    forget = case.forget_set(scene.examples, GONE)
    with pytest.raises(Refused):
        scene.method.forget(scene.problem, scene.state, forget, None, torch.Generator(DEVICE))


@each_of(needing(Need.FORGOTTEN))
def test_missing_forgotten_samples_are_refused(case: Case) -> None:
    scene = scene_of(case)
    full = case.forget_set(scene.examples, GONE)
    with pytest.raises(Refused):
        scene.method.forget(
            scene.problem,
            scene.state,
            ForgetSet(full.people, full.positions),
            case.retain_set(scene.examples, full),
            torch.Generator(DEVICE),
        )


@each_of(needing(Need.TRAJECTORY))
def test_a_missing_trajectory_is_refused(case: Case) -> None:
    scene = scene_of(case)
    with pytest.raises(Refused):
        scene.method.prepare(scene.problem, scene.examples, Learned(scene.learned.weights))
