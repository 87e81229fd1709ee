"""What a world does with the model of a recipe that returns ``ul.Recipe``: it describes, trains, forgets and measures.

This runs beside the recipe's code, and what it answers is read as coming from there. Of a linear head it answers the
features and the settings; all else is done by a ``Judge``, in a process without the recipe's code, and a bound is
computed nowhere but there.

Samples are named by their number in the order in which the recipe gives them. The service says at which position of its
manifest each stands, and whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from expunge_workers.runtime.world import Files
from unlearning.accounting.certificate import Guarantee
from unlearning.bounds.minimiser import Minimiser
from unlearning.columns import Column, Texts, row_bytes, row_digests
from unlearning.features.tangent import tangent_of_rows
from unlearning.fitted import files_of_fitted
from unlearning.methods import load
from unlearning.model.closed_form import FEW, ROWS, require_agreement, require_own_weights
from unlearning.model.linear_head import Affine, Head, head_of
from unlearning.model.method import Bound, Method, require_followed
from unlearning.model.problem import Problem, metric_name
from unlearning.model.tangent import TangentModel, affine_of, drawn_start
from unlearning.model.training import learn, train
from unlearning.quality.distance_left import with_distance_left
from unlearning.recipe import Recipe, Samples
from unlearning.rows import Published, Rows, with_holdout
from unlearning.settings import Schedule, Training
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
LEARNED, PLANNED, IMPORTED = "learned", "planned", "imported"
OBJECTIVE, APART = "objective", "kept apart"
"""files of tensors that an order brings along; the last two are for a judge"""
FEATURES, TARGETS, WEIGHT, START = "features", "targets", "weight", "start"
"""the tensors of an objective: (n, D) float64, (n, ...), (n,); and where steps of descent begin, (d,) float64"""
SETTINGS = ("weight_decay", "seed", "converge", "sample_clip", "radius")
"""of a training that ends in a minimiser: those that its objective follows from"""
STEPS = ("epochs", "learning_rate", "decay", "clip")
"""of full-batch descent: those that its steps follow from too, beside the schedule"""
MOST_WRITTEN = 2**26
"""numbers (half a gigabyte) of the Jacobians that a world writes out for a judge"""
IDS = "ids", "ends of ids"
"""the tensors of a description: the ids of all samples as one text, and where each ends"""
CHECKPOINT = "model.safetensors"
VECTOR, KEPT, CONSTANT, BESIDE = "vector ", "state ", "constant ", "beside "
"""how the names of tensors begin, before that of the holder, of the state's tensor, of the model's, and of a file"""
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
            held = self.recipe.samples.rows
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
    require_given_by_rows(recipe)
    problem = Problem(recipe, device)
    examples = recipe.samples.examples(device=device)
    require_own_weights(problem, examples, _generator_of(recipe))
    weights = train(problem, examples).weights.to(problem.dtype)
    tensors = {name: value.detach().cpu().contiguous() for name, value in problem.tensors(weights).items()}

    def score(*one: Rows, **several: Rows) -> float | None:
        measured = Problem(with_holdout(recipe, dict(enumerate(one)) if one else several), device)
        return measured.accuracy(weights, *(part.to(measured.device) for part in measured.recipe.holdout_tensors))

    return Published({CHECKPOINT: save(tensors, {"format": "pt"}), **files_beside(recipe)}, score=score)


def files_beside(recipe: Recipe) -> dict[str, bytes]:
    """Return the files that are published with the model. Raises RecipeError."""
    files: dict[str, bytes] = {}
    for name, fitted in recipe.publish.items():
        files |= files_of_fitted(name, fitted)
    if CHECKPOINT in files:
        raise RecipeError(f"publish gives a file {CHECKPOINT!r}, which is the model's.", "Give it another name.")
    return files


def _describe(task: _Task) -> Answer:
    """Answer what the model is made of, and of each sample its id, its people and a digest of what it holds."""
    recipe = task.recipe
    imports = any(task.words["weights"].values())
    require_given_by_rows(recipe, imports=imports)
    if imports and recipe.weights is None:
        what = "The recipe declares ul.weights, and gives no weights when it gets the file."
        raise RecipeError(what, "Give ul.Recipe(weights=None if path is None else load_file(path)).")
    problem = task.problem
    require_own_weights(problem, recipe.samples.examples(device=problem.device), _generator_of(recipe))
    named = (*problem.module.named_parameters(), *problem.module.named_buffers())
    slots = {slot.name for slot in problem.layout}
    slot_of = {id(value): name for name, value in named if name in slots}
    saved = problem.module.state_dict(keep_vars=True)
    constants = {
        f"{CONSTANT}{name}": value.detach().clone() for name, value in saved.items() if id(value) not in slot_of
    }
    imported = {IMPORTED: problem.flatten(recipe.weights)} if recipe.weights is not None else {}
    samples = recipe.samples
    facts = {
        "layout": [[slot.name, list(slot.shape), slot.start, slot.stop, slot.buffer] for slot in problem.layout],
        "saved": [[name, slot_of.get(id(value))] for name, value in saved.items()],
        "dtypes": {name: str(value.dtype).removeprefix("torch.") for name, value in saved.items()},
        "metric": metric_name(recipe),
        "holdout": not callable(recipe.holdout),
        "recorded": recipe.trajectory is not None,
        "refused": {name: _why_refused(name, recipe) for name in task.words["methods"]},
        "people": [list(people) for people in samples.people.values],
        "vectors_for": None if recipe.vectors_for is None else sorted(recipe.vectors_for),
    }
    beside = {
        f"{BESIDE}{name}": torch.frombuffer(bytearray(content), dtype=torch.uint8)
        for name, content in files_beside(recipe).items()
    }
    tensors = beside | constants | imported | {"contents": _contents(recipe), "codes": samples.people.codes.clone()}
    tensors |= dict(zip(IDS, map(torch.tensor, (samples.names.data, samples.names.ends)), strict=True))
    compared = FEW if task.words["again"] else ROWS
    head = affine_for_judge(problem, recipe, task.policys_method, compared)
    if head is None:
        return facts, tensors
    tensors |= {FEATURES: _features(head, samples.inputs), TARGETS: samples.targets}
    tensors |= {} if samples.weight is None else {WEIGHT: samples.weight}
    tensors |= {} if recipe.training.converge is not None else {START: problem.initial().double().cpu()}
    return facts | {"head": _head_in_words(head, recipe)}, tensors


def require_given_by_rows(recipe: Recipe, *, imports: bool = False) -> None:
    """Raise RecipeError where the recipe gives what comes from its rows or from a declared file.

    ``imports``: it was handed the file of a model that was trained elsewhere.
    """
    if recipe.holdout_subjects is not None:
        what = "The recipe gives holdout_subjects, and the service knows by the rows whom accuracy is measured by."
        raise RecipeError(what, "Say aside= in the source, and let holdout be a function of the rows kept apart.")
    if recipe.weights is not None and not imports:
        what = "The recipe gives weights, and the service handed it none."
        raise RecipeError(
            what, "Declare the file, path=ul.weights('model.safetensors', sha256=...), and give None for None."
        )


def _why_refused(method: str, recipe: Recipe) -> list[str] | None:
    """Return why the method cannot follow the recipe's training, and what to do instead; None where it can."""
    try:
        require_followed(load(method)(), recipe)
    except Refused as error:
        return [error.what, error.hint]
    return None


def affine_for_judge(
    problem: Problem, recipe: Recipe, method: Method | None = None, compared: int = ROWS
) -> Affine | None:
    """Return the model's linear head, or its tangent, where a judge can train it, and nothing acts beside.

    It ends in a minimiser; or a head takes plain full-batch steps, and the method has a bound for these. A tangent's
    Jacobians are at most ``MOST_WRITTEN`` numbers. On ``compared`` samples it is compared with its structure.

    Raises Refused where it computes something else than its structure says.
    """
    training = recipe.training
    if training.converge is None and (method is None or not _bounds_steps(method, problem)):
        return None
    if training.augment is not None or problem.acts_in_training:
        return None
    work = problem.double()
    model = head_of(work) if training.converge is None else affine_of(work)
    if isinstance(model, TangentModel) and (recipe.weights is not None or _written(model) > MOST_WRITTEN):
        return None
    if model is not None:
        require_agreement(work, recipe.samples.examples(device=problem.device), _generator_of(recipe), compared)
    return model


def _written(tangent: TangentModel) -> int:
    """Return how many numbers the values and Jacobians of all samples are."""
    problem = tangent.problem
    return len(problem.recipe.samples) * tangent.outputs * (1 + problem.dimension)


def _bounds_steps(method: Method, problem: Problem) -> bool:
    """Tell whether the method bounds how far its own steps can end from those of the problem's training."""
    size, elsewhere = problem.training.step_size, problem.recipe.weights is not None
    whole = size is None or size >= len(problem.recipe.samples)
    return method.bound(Guarantee.PROVED) is not None and whole and not elsewhere and not problem.ingredients


def _generator_of(recipe: Recipe) -> torch.Generator:
    """Return a generator on the CPU for what is compared at random weights, the same for the same recipe."""
    return torch.Generator().manual_seed(recipe.training.seed)


def _features(model: Affine, inputs: Tensor) -> Tensor:
    """Return what a head's layer is fed, (n, D) float64; of a tangent values and Jacobians, (n, K + K d)."""
    features = model.features(inputs.to(model.problem.device))
    if isinstance(model, TangentModel):
        values, jacobians = model.tangent.rows(features)
        return torch.cat([values, jacobians.flatten(1)], dim=1).cpu().contiguous()
    return features[:, : _layer(model).in_features].cpu().contiguous()


def _layer(model: Affine) -> torch.nn.Linear:
    if not isinstance(model, Head):
        raise TypeError("the model is no linear head")
    return model.layer


def _head_in_words(model: Affine, recipe: Recipe) -> dict[str, Any]:
    training, decay, tangent = recipe.training, model.problem.decay, isinstance(model, TangentModel)
    if tangent:
        parts, sizes = {"displacement": decay}, {"features": model.problem.dimension, "bias": False}
    else:
        layer = _layer(model)
        weights = layer.weight.numel()
        parts = {"weight": decay[:weights]} | ({} if layer.bias is None else {"bias": decay[weights:]})
        sizes = {"features": layer.in_features, "bias": layer.bias is not None}
    return {
        **sizes,
        "outputs": model.outputs,
        "tangent": tangent,
        "drawn": tangent and drawn_start(model.problem),
        "loss": recipe.loss,
        "undecayed": [name for name, values in parts.items() if not values.any()],
        **{name: getattr(training, name) for name in SETTINGS},
        "steps": None if training.converge is not None else _steps_in_words(training),
    }


def _steps_in_words(training: Training) -> dict[str, Any]:
    return {name: getattr(training, name) for name in STEPS} | {"schedule": asdict(training.schedule)}


def linear_training(head: Mapping[str, Any]) -> Training:
    """Return the settings by which a linear head is trained, from its description."""
    settings = {name: head[name] for name in SETTINGS} | {"undecayed": tuple(head["undecayed"])}
    if head["steps"] is None:
        return Training(epochs=0, **settings)
    steps = {name: head["steps"][name] for name in STEPS}
    return Training(**steps, schedule=Schedule(**head["steps"]["schedule"]), **settings)


def affine_model(head: Mapping[str, Any], start: Tensor | None = None) -> Callable[[], torch.nn.Module]:
    """Return what builds the model that is trained by itself: a linear layer, or a tangent of given Jacobians."""
    size = int(head["features"]), int(head["outputs"])
    if head["tangent"]:
        return partial(tangent_of_rows, size[1], size[0])
    return partial(linear_layer, *size, bool(head["bias"]), start)


def linear_layer(features: int, outputs: int, bias: bool, start: Tensor | None = None) -> torch.nn.Linear:
    """Return a linear layer; ``start``: its weights and bias in one row (d,)."""
    layer = torch.nn.Linear(features, outputs, bias)
    if start is not None:
        torch.nn.utils.vector_to_parameters(start.to(layer.weight.dtype), layer.parameters())
    return layer


class Judge:
    """Does what orders ask for with a linear head on the features that a world of the recipe answered.

    An order brings the features along where they are others than those of the order before it.
    """

    def __init__(self) -> None:
        self._objective: Mapping[str, Tensor] = {}
        self._samples: Samples | None = None

    def __call__(self, files: Files, words: Mapping[str, Any]) -> Answer:
        if OBJECTIVE in files:
            self._take(load_tensors(bytes(files[OBJECTIVE])))
        if self._samples is None:
            raise ValueError("the first order brings no features")
        objective, samples, apart = self._objective, self._samples, dict[str, Tensor]()
        if APART in files:
            apart = load_tensors(bytes(files[APART]))
        holdout = (apart[FEATURES], apart[TARGETS]) if apart else (objective[FEATURES][:1], objective[TARGETS][:1])
        metric = words["metric"] if apart else None
        recipe = linear_recipe(words["head"], samples, holdout, metric=metric, start=objective.get(START))
        if IMPORTED in files:
            weights = load_tensors(bytes(files[IMPORTED]))[IMPORTED]
            recipe = replace(recipe, weights=Problem(recipe).tensors(weights))
        return carry_out(recipe, files, words, {})

    def _take(self, objective: Mapping[str, Tensor]) -> None:
        """Make samples of the features. They are told apart by number, and whose they are each order says.

        Where that fails nothing is kept, of the order before neither: no order may compute with another's features.
        """
        self._objective, self._samples = {}, None
        count = len(objective[FEATURES])
        ids = Texts.of(map(str, range(count)))
        nobody = Column(torch.zeros(count, dtype=torch.int64), ("nobody",))
        samples = Samples(ids, nobody, objective[FEATURES], objective[TARGETS], weight=objective.get(WEIGHT))
        self._objective, self._samples = objective, samples


def linear_recipe(
    head: Mapping[str, Any],
    samples: Samples,
    holdout: tuple[Tensor, Tensor],
    metric: str | None,
    start: Tensor | None = None,
) -> Recipe:
    """Return the recipe of a linear layer on features, or of a tangent, from its description."""
    return Recipe(
        model=affine_model(head, start),
        samples=samples,
        holdout=holdout,
        loss=head["loss"],
        training=linear_training(head),
        metric=metric,
    )


def _useful(task: _Task) -> Answer:
    """Answer the constants of the bound, and what registration reports of it."""
    bound, problem, examples = task.bound, task.problem, task.examples(EXAMPLES)
    state = _state_of(task)
    constants = bound.constants(problem, examples, state)
    values = {constant.name: constant.value for constant in constants}
    report = bound.require_useful(problem, examples, state, task.words["max_distance"], values)
    return {"constants": [asdict(constant) for constant in constants], "report": report}, {}


def _refine(task: _Task) -> Answer:
    """Move an update's weights until their bound is at most the greatest distance; answer both."""
    bound, problem, retain = task.bound, task.problem, task.examples(EXAMPLES)
    forgotten = Forgotten(_state_of(task), task.words["evidence"])
    words = task.words
    weights, distance = bound.refine(problem, forgotten, retain, words["max_distance"], words["values"])
    return {"distance": distance}, {WEIGHTS: weights}


def _apart(task: _Task) -> Answer:
    """Answer features and targets of the people who are kept apart."""
    recipe = with_holdout(task.recipe, task.apart)
    head = affine_of(Problem(recipe, task.words["device"]).double())
    if head is None:
        raise RecipeError("The model has no linear head here.", "Build the same model whoever is in the rows.")
    inputs, targets = recipe.holdout_tensors
    return {}, {FEATURES: _features(head, inputs), TARGETS: targets.contiguous()}


def _contents(recipe: Recipe) -> Tensor:
    """Return a digest of each sample, (n, 32) uint8: of its id, its input, its target and its weight."""
    (inputs, targets), names = recipe.samples.tensors(), recipe.samples.names
    kind = f"{inputs.dtype} {tuple(inputs.shape[1:])} {targets.dtype} {tuple(targets.shape[1:])} ".encode()
    rows = (row_bytes(values.detach().cpu().contiguous().numpy()) for values in (inputs, targets))
    ids = names.encoded(0, len(names))
    return torch.from_numpy(row_digests(map(b"".join, zip(repeat(kind, len(ids)), *rows, ids, strict=True))))


def _train(task: _Task) -> Answer:
    """Train, and answer the weights alone."""
    problem, examples = task.problem, task.examples(EXAMPLES)
    task.method.require_size(problem, len(examples))
    return {}, {LEARNED: _learned(task, problem, examples).weights}


def _retrain(task: _Task) -> Answer:
    """Train as the model was trained, in the same order, without the samples that are left out; answer the weights."""
    problem, words = task.problem, task.words
    if problem.training.converge is None:
        problem = problem.cast(getattr(torch, words["dtype"]))
    planned = task.tensors(PLANNED)[PLANNED]
    learned = train(problem, task.examples(EXAMPLES), planned=planned, reference=words["reference"])
    return {}, {LEARNED: learned.weights}


def _learned(task: _Task, problem: Problem, examples: Examples) -> Learned:
    """Train or import, but where the order brings along what another part trained."""
    if LEARNED in task.files:
        return Learned(task.tensors(LEARNED)[LEARNED])
    return train(problem, examples) if task.words["cold"] else learn(task.recipe, problem, examples)


def _prepare(task: _Task) -> Answer:
    """Train, and compute what the method keeps. A method that is tuned by people kept apart is given these."""
    if task.apart:
        task = replace(task, recipe=with_holdout(task.recipe, task.apart))
    # the examples are known by their holders, and so are those among them who get a vector
    task = replace(task, recipe=replace(task.recipe, vectors_for=task.words["holders_with_vector"]))
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
    words, state = task.words, _state_of(task)
    retain = task.examples(EXAMPLES) if EXAMPLES in task.files else None
    theirs = task.examples(FORGOTTEN) if FORGOTTEN in task.files else None
    vectors = task.tensors(VECTORS) if VECTORS in task.files else {}
    forget = ForgetSet(frozenset(words["leaving"]), tuple(words["positions"]), theirs, Vectors(vectors))
    draws = torch.Generator(words["device"]).manual_seed(words["draws"])
    forgotten = task.method.forget(task.problem, state, forget, retain, draws)
    facts, tensors = _kept(forgotten.state)
    return facts | {"evidence": dict(forgotten.evidence)}, tensors


def _state_of(task: _Task) -> State:
    """Return the state that the order brings along."""
    given = task.tensors(STATE)
    kept = {name.removeprefix(KEPT): value for name, value in given.items() if name != WEIGHTS}
    return State(given[WEIGHTS], kept, task.words["facts"])


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
    head = affine_for_judge(task.problem, task.recipe, task.policys_method, FEW)
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
    "retrain": _retrain,
    "prepare": _prepare,
    "forget": _forget,
    "samples": _samples_of,
    "measure": _measure,
    "useful": _useful,
    "refine": _refine,
    "apart": _apart,
}
