"""What a world does with the model of a recipe that returns ``ul.Recipe``: it describes, trains, forgets and measures.

This runs beside the recipe's code, and what it answers is read as coming from there. Of a linear head it answers the
features and the settings; all else is done by a judge, a world without the recipe's code (``judged``), and a bound is
computed nowhere but there.

Samples are named by their number in the order in which the recipe gives them. The service says at which position of its
manifest each stands, and whose it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from expunge.workers.runtime.world import Files
from unlearning.accounting.certificate import Guarantee
from unlearning.bounds.minimiser import Minimiser
from unlearning.columns import Column
from unlearning.methods import load
from unlearning.model.closed_form import require_agreement
from unlearning.model.linear_head import Head, head_of
from unlearning.model.method import Bound, Method, require_followed
from unlearning.model.problem import Problem, metric_name
from unlearning.model.training import learn, train
from unlearning.quality.distance_left import with_distance_left
from unlearning.recipe import Recipe, Samples
from unlearning.rows import Published, Rows, with_holdout
from unlearning.settings import Training
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Ineffective,
    Learned,
    RecipeError,
    Refused,
    State,
    Tensors,
    Vectors,
    VectorsMissing,
)

EXAMPLES, STATE, VECTORS, FORGOTTEN, WEIGHTS = "examples", "state", "vectors", "forgotten", "weights"
LEARNED = "learned"
OBJECTIVE, APART = "objective", "kept apart"
"""files of tensors that an order brings along; the last two are for a judge"""
FEATURES, TARGETS, WEIGHT = "features", "targets", "weight"
"""the tensors of an objective: (n, D) float64, (n, ...), (n,)"""
SETTINGS = ("weight_decay", "seed", "converge", "sample_clip", "radius")
"""of a training that ends in a minimiser: those that its objective follows from"""
CHECKPOINT = "model.safetensors"
VECTOR, KEPT, CONSTANT = "vector ", "state ", "constant "
"""how the names of tensors begin, before that of the holder, of the state's tensor and of the model's"""
Answer = tuple[dict[str, Any], dict[str, Tensor]]
"""facts as plain JSON, and tensors by name"""


@dataclass(frozen=True)
class _Task:
    """What is to be done: the order's words, and its files."""

    recipe: Recipe
    files: Files
    words: Mapping[str, Any]
    apart: Mapping[str, Rows]

    @property
    def policys_method(self) -> Method:
        method: Method = load(self.words["method"]["name"])(**self.words["method"]["options"])
        return method

    @property
    def method(self) -> Method:
        """The method as it works under the guarantee."""
        return self.policys_method.under(Guarantee(self.words["guarantee"]), self.recipe)

    @property
    def problem(self) -> Problem:
        return Problem(self.recipe, self.words["device"])

    @property
    def bound(self) -> Bound:
        bound = self.method.bound(Guarantee(self.words["guarantee"]))
        return bound or Minimiser(self.words["denominator"])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a file, on the work device."""
        device = torch.device(self.words["device"])
        return {name: value.to(device) for name, value in load_tensors(bytes(self.files[name])).items()}

    def examples(self, name: str) -> Examples:
        """Return the samples that a file names by number, position and holder; or that it holds."""
        given = self.tensors(name)
        if "inputs" in given:
            rows = Tensors(given["inputs"], given["targets"])
        else:
            held = self.recipe.samples.held(None)
            if not isinstance(held, Tensors):
                raise TypeError("samples are held in memory")
            numbers, device = given["numbers"].cpu(), given["positions"].device
            rows = Tensors(held.inputs[numbers].to(device), held.targets[numbers].to(device))
        people = Column(given["holders"].cpu(), tuple(self.words["holders"]))
        return Examples(given["positions"], rows, people).compact()


def carry_out(recipe: Recipe, files: Files, words: Mapping[str, Any], apart: Mapping[str, Rows]) -> Answer:
    """Do what the order asks for. Where a method refuses, the facts say so."""
    try:
        return TASKS[words["task"]](_Task(recipe, files, words, apart))
    except VectorsMissing as error:
        return {"missing": error.count}, {}
    except Refused as error:
        return {"refused": [error.what, error.hint], "ineffective": isinstance(error, Ineffective)}, {}


def trained(recipe: Recipe, device: str) -> Published:
    """Train the recipe's model by its settings, and return it as a checkpoint, as every other method publishes it."""
    if recipe.train is not None or recipe.weights is not None:
        what = "The recipe gives weights or train, and this method trains a model by ul.Training, or not at all."
        raise RecipeError(what, "Train in the recipe itself and return ul.Published.")
    problem = Problem(recipe, device)
    weights = train(problem, recipe.samples.examples(device=device)).weights.to(problem.dtype)
    tensors = {name: value.detach().cpu().contiguous() for name, value in problem.tensors(weights).items()}

    def score(*one: Rows, **several: Rows) -> float | None:
        measured = Problem(with_holdout(recipe, dict(enumerate(one)) if one else several), device)
        return measured.accuracy(weights, *(part.to(measured.device) for part in measured.recipe.holdout_tensors))

    return Published({CHECKPOINT: save(tensors, {"format": "pt"})}, score=score)


def _describe(task: _Task) -> Answer:
    """Answer what the model is made of, and of each sample its id, its people and a digest of what it holds."""
    recipe, problem = task.recipe, task.problem
    require_no_other_training(recipe)
    named = (*problem.module.named_parameters(), *problem.module.named_buffers())
    slots = {slot.name for slot in problem.layout}
    slot_of = {id(value): name for name, value in named if name in slots}
    saved = problem.module.state_dict(keep_vars=True)
    constants = {
        f"{CONSTANT}{name}": value.detach().clone() for name, value in saved.items() if id(value) not in slot_of
    }
    samples = recipe.samples
    facts = {
        "layout": [[slot.name, list(slot.shape), slot.start, slot.stop, slot.buffer] for slot in problem.layout],
        "saved": [[name, slot_of.get(id(value))] for name, value in saved.items()],
        "dtypes": {name: str(value.dtype).removeprefix("torch.") for name, value in saved.items()},
        "metric": metric_name(recipe),
        "holdout": not callable(recipe.holdout),
        "refused": {name: _why_refused(name, recipe) for name in task.words["methods"]},
        "ids": list(samples.names),
        "people": [list(people) for people in samples.people.values],
    }
    tensors = constants | {"contents": _contents(recipe), "codes": samples.people.codes.clone()}
    head = head_for_judge(problem, recipe)
    if head is None:
        return facts, tensors
    inputs, _ = samples.tensors()
    tensors |= {FEATURES: _features(head, inputs), TARGETS: samples.unweighted_targets()}
    tensors |= {} if samples.weight is None else {WEIGHT: samples.weight}
    return facts | {"head": _head_in_words(head, recipe)}, tensors


def require_no_other_training(recipe: Recipe) -> None:
    """Raise Refused where the recipe gives what one with rows cannot."""
    for given in ("vectors_for", "weights"):
        if getattr(recipe, given) is not None:
            what = f"The recipe gives {given}, which a recipe with rows does not have yet."
            raise Refused(what, "Leave it out: every person gets a vector, and the service trains.")


def _why_refused(method: str, recipe: Recipe) -> list[str] | None:
    """Return why the method cannot follow the recipe's training, and what to do instead; None where it can."""
    try:
        require_followed(load(method)(), recipe)
    except Refused as error:
        return [error.what, error.hint]
    return None


def head_for_judge(problem: Problem, recipe: Recipe) -> Head | None:
    """Return the model's linear head, where a judge can train it: it ends in a minimiser, and nothing acts beside.

    Raises Refused where it computes something else than its structure says.
    """
    training = recipe.training
    if training.converge is None or training.augment is not None or problem.acts_in_training:
        return None
    work = problem.double()
    head = head_of(work)
    if head is not None:
        drawn = torch.Generator().manual_seed(training.seed)
        require_agreement(work, recipe.samples.examples(device=problem.device), drawn)
    return head


def _features(head: Head, inputs: Tensor) -> Tensor:
    """Return what the head's layer is fed, (n, D) float64."""
    features = head.features(inputs.to(head.problem.device))
    return features[:, : head.layer.in_features].cpu().contiguous()


def _head_in_words(head: Head, recipe: Recipe) -> dict[str, Any]:
    training, decay = recipe.training, head.problem.decay
    weights = head.layer.weight.numel()
    parts = {"weight": decay[:weights]} | ({} if head.layer.bias is None else {"bias": decay[weights:]})
    return {
        "features": head.layer.in_features,
        "outputs": head.layer.out_features,
        "bias": head.layer.bias is not None,
        "loss": recipe.loss,
        "undecayed": [name for name, values in parts.items() if not values.any()],
        **{name: getattr(training, name) for name in SETTINGS},
    }


def judged(files: Files, words: Mapping[str, Any]) -> Answer:
    """Do what the order asks for with a linear head on the features that a world of the recipe answered."""
    tensors, apart = load_tensors(bytes(files[OBJECTIVE])), {}
    if APART in files:
        apart = load_tensors(bytes(files[APART]))
    count = len(tensors[FEATURES])
    names = [str(number) for number in range(count)]
    samples = Samples(names, names, tensors[FEATURES], tensors[TARGETS], weight=tensors.get(WEIGHT))
    holdout = (apart[FEATURES], apart[TARGETS]) if apart else (tensors[FEATURES][:1], tensors[TARGETS][:1])
    recipe = linear_recipe(words["head"], samples, holdout, metric=words["metric"] if apart else None)
    return carry_out(recipe, files, words, {})


def linear_recipe(
    head: Mapping[str, Any], samples: Samples, holdout: tuple[Tensor, Tensor], metric: str | None
) -> Recipe:
    """Return the recipe of a linear layer on features, from its description."""
    size = head["features"], head["outputs"], head["bias"]
    settings = {name: head[name] for name in SETTINGS}
    return Recipe(
        model=partial(torch.nn.Linear, *size),
        samples=samples,
        holdout=holdout,
        loss=head["loss"],
        training=Training(epochs=0, undecayed=tuple(head["undecayed"]), **settings),
        metric=metric,
    )


def _useful(task: _Task) -> Answer:
    """Answer the constants of the bound, and what registration reports of it."""
    bound, problem, examples = task.bound, task.problem, task.examples(EXAMPLES)
    given = task.tensors(STATE)
    state = State(given[WEIGHTS], {name.removeprefix(KEPT): given[name] for name in given if name != WEIGHTS})
    constants = bound.constants(problem, examples, state)
    values = {constant.name: constant.value for constant in constants}
    report = bound.require_useful(problem, examples, state, task.words["max_distance"], values)
    return {"constants": [asdict(constant) for constant in constants], "report": report}, {}


def _refine(task: _Task) -> Answer:
    """Move weights until their bound is at most the greatest distance; answer both."""
    bound, problem, retain = task.bound, task.problem, task.examples(EXAMPLES)
    weights = task.tensors(WEIGHTS)[WEIGHTS]
    moved = bound.refine(problem, weights, retain, task.words["max_distance"])
    distance = bound.distance(problem, Forgotten(State(moved)), retain, task.words["values"])
    return {"distance": distance}, {WEIGHTS: moved}


def _apart(task: _Task) -> Answer:
    """Answer features and targets of the people who are kept apart."""
    recipe = with_holdout(task.recipe, task.apart)
    head = head_of(Problem(recipe, task.words["device"]).double())
    if head is None:
        raise RecipeError("The model has no linear head here.", "Build the same model whoever is in the rows.")
    inputs, targets = recipe.holdout_tensors
    return {}, {FEATURES: _features(head, inputs), TARGETS: targets.contiguous()}


def _contents(recipe: Recipe) -> Tensor:
    """Return a digest of each sample, (n, 32) uint8: of its id, its input, its target and its weight."""
    digests, ids = bytearray(), iter(recipe.samples.names)
    for inputs, targets in recipe.samples.blocks():
        kind = f"{inputs.dtype} {tuple(inputs.shape[1:])} {targets.dtype} {tuple(targets.shape[1:])} ".encode()
        for x, y in zip(_bytes(inputs), _bytes(targets), strict=True):
            digests += hashlib.sha256(kind + x + y + next(ids).encode()).digest()
    return torch.frombuffer(digests, dtype=torch.uint8).reshape(-1, 32)


def _bytes(values: Tensor) -> Iterator[bytes]:
    return (row.tobytes() for row in values.detach().cpu().contiguous().numpy())


def _train(task: _Task) -> Answer:
    """Train, and answer the weights alone."""
    problem, examples = task.problem, task.examples(EXAMPLES)
    task.method.require_size(problem, len(examples))
    return {}, {LEARNED: _learned(task, problem, examples).weights}


def _learned(task: _Task, problem: Problem, examples: Examples) -> Learned:
    """Train or import, but where the order brings along what another part trained."""
    if LEARNED in task.files:
        return Learned(task.tensors(LEARNED)[LEARNED])
    return train(problem, examples) if task.words["cold"] else learn(task.recipe, problem, examples)


def _prepare(task: _Task) -> Answer:
    """Train, and compute what the method keeps. A method that is tuned by people kept apart is given these."""
    if task.apart:
        task = replace(task, recipe=with_holdout(task.recipe, task.apart))
    problem, method, examples = task.problem, task.method, task.examples(EXAMPLES)
    method.require_size(problem, len(examples))
    learned = _learned(task, problem, examples)
    state = method.prepare(problem, examples, learned)
    # Under proved a solve stops early, because refinement works beyond it: the method is judged without that.
    proved = Guarantee(task.words["guarantee"]) is Guarantee.PROVED
    state = with_distance_left(
        task.policys_method if proved else method,
        problem,
        examples,
        learned,
        state,
        vectors=Vectors(state.vectors),
        threshold=task.words["threshold"],
    )
    facts, tensors = _kept(state)
    return facts, tensors | {LEARNED: learned.weights}


def _forget(task: _Task) -> Answer:
    words, given = task.words, task.tensors(STATE)
    kept = {name.removeprefix(KEPT): value for name, value in given.items() if name != WEIGHTS}
    state = State(given[WEIGHTS], kept, words["facts"])
    retain = task.examples(EXAMPLES) if EXAMPLES in task.files else None
    theirs = task.examples(FORGOTTEN) if FORGOTTEN in task.files else None
    vectors = task.tensors(VECTORS) if VECTORS in task.files else {}
    forget = ForgetSet(frozenset(words["leaving"]), tuple(words["positions"]), theirs, Vectors(vectors))
    draws = torch.Generator(words["device"]).manual_seed(words["draws"])
    forgotten = task.method.forget(task.problem, state, forget, retain, draws)
    facts, tensors = _kept(forgotten.state)
    return facts | {"evidence": dict(forgotten.evidence)}, tensors


def _kept(state: State) -> Answer:
    tensors = {f"{KEPT}{name}": value for name, value in state.tensors.items()}
    tensors |= {f"{VECTOR}{holder}": value for holder, value in state.vectors.items()}
    every = {WEIGHTS: state.weights, **tensors}
    return {"facts": dict(state.facts)}, {
        name: value.detach().cpu().contiguous().clone() for name, value in every.items()
    }


def _samples_of(task: _Task) -> Answer:
    """Answer the samples of some people: ids, what they hold, and a digest of each."""
    people = {tuple(names) for names in task.words["people"]}
    numbers = task.recipe.samples.people.where(people.__contains__).nonzero().squeeze(1)
    inputs, targets = next(iter(task.recipe.samples.rows.read([numbers])))
    ids = list(task.recipe.samples.names.take(numbers))
    head = head_for_judge(task.problem, task.recipe)
    given = inputs if head is None else _features(head, inputs)
    tensors = {"inputs": given.contiguous(), "targets": targets.contiguous()}
    return {"ids": ids}, tensors | {"contents": _contents(task.recipe)[numbers]}


def _measure(task: _Task) -> Answer:
    """Answer how good the model is at each of some weights, on the rows of the people who are kept apart."""
    known = task.apart or not callable(task.recipe.holdout)
    if not known or metric_name(task.recipe) is None:
        return {"scores": None}, {}
    problem = replace(task, recipe=with_holdout(task.recipe, task.apart)).problem
    inputs, targets = (part.to(problem.device) for part in problem.recipe.holdout_tensors)
    weights = task.tensors(WEIGHTS)
    problems = {w.dtype: problem.cast(w.dtype) for w in weights.values()}
    scores = [problems[w.dtype].accuracy(w.to(problem.device), inputs, targets) for _, w in sorted(weights.items())]
    return {"scores": scores}, {}


TASKS = {
    "describe": _describe,
    "train": _train,
    "prepare": _prepare,
    "forget": _forget,
    "samples": _samples_of,
    "measure": _measure,
    "useful": _useful,
    "refine": _refine,
    "apart": _apart,
}
