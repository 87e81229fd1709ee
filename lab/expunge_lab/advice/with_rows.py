"""What each method does on a recipe, by the path of its file or folder.

Exact methods train where the service trains them: in worlds, on everybody. All others compute here, on the samples that
the recipe makes of everybody's rows; what it costs an update to run the recipe is measured in a world.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from expunge_lab.advice.choice import Offer
from expunge_lab.advice.measure import FORGOTTEN, LEAST_PEOPLE, Findings, Limit, OutOfTime, Scene, measure
from expunge_lab.recipe import load_recipe, place_of
from expunge_service.infra.settings import Settings
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_workers.check.checks import ANY, NEEDS_RUN, PartsInMemory
from expunge_workers.runtime.model import OpenModel, forget_by_parts, set_up
from expunge_workers.runtime.rows_recipe import RowsRecipe, SourceUnits, declared, survey
from expunge_workers.runtime.world_model import WorldModel
from expunge_workers.runtime.worlds import Lost, readers, template
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Fallback, Granularity, Policy
from unlearning.methods import NAMES, load
from unlearning.model.training import learn
from unlearning.quality.simulate import forget_set, left_by
from unlearning.types import Examples, Learned, RecipeError, Refused, State

WORLD_PART = 0.5
"""of the time that is left once the recipe was trained, for the other exact methods"""
PASSING = (Lost, MemoryError)
"""what a world is ended by that is no fault of the recipe's, and may pass"""
MOVED = (
    "Without one person {moved} of the {count} samples of those who stay are others: what the recipe computes of all "
    "rows moves with who leaves. Such an update trains the whole again."
)


@dataclass(frozen=True)
class RowsScene:
    """What is measured on: a recipe, by its file or folder; see ``Scene``."""

    place: Path
    policy: Policy
    device: torch.device
    vector_bytes: int
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)

    def policy_of(self, name: str) -> Policy:
        options = self.options.get(name, {})
        return replace(self.policy, method=name, options=options, fallback=Fallback.HOLD, guarantee=None)


@dataclass(frozen=True)
class _Opened:
    """A recipe with its sources, which end with the readers. ``seconds``: what opening them takes."""

    recipe: RowsRecipe
    units: SourceUnits
    seconds: float

    @property
    def aside(self) -> dict[str, list[int]]:
        """The units that are kept apart, by source."""
        numbers: dict[str, list[int]] = {}
        for source, number in self.units.aside:
            numbers.setdefault(source, []).append(number)
        return numbers


def measure_with_rows(
    scene: RowsScene, seconds: float, limit: Limit, tell: Callable[[str], None], names: Sequence[str] = NAMES
) -> Findings:
    """Measure every method within about so many seconds; ``tell`` is called with the name of what is tried next.

    Raises:
        Refused: the recipe cannot be trained at all, or its process was killed.
        OutOfTime: one training on everybody does not fit; the text says so.
    """
    end = time.perf_counter() + seconds
    tell("training")
    with _opened(scene) as opened:
        try:
            retrain = _exact(scene, opened, "retrain", seconds, limit)
        except OutOfTime:
            raise OutOfTime(f"A training on everybody takes more than {seconds:.3g} s.") from None
        except PASSING as error:
            what = f"A training on everybody did not end: {error}."
            raise Refused(what, "Try again with more memory free.") from None
    offers = {"retrain": retrain}
    exact = [name for name in names if load(name).exact and name != "retrain"]
    until = time.perf_counter() + (end - time.perf_counter()) * WORLD_PART
    for place, name in enumerate(exact):
        tell(name)
        offers[name] = _offer(scene, name, max(0.0, until - time.perf_counter()) / (len(exact) - place), limit)
    others = [name for name in names if not load(name).exact]
    if others:
        offers |= _others(scene, others, end, limit, tell)
    return Findings(tuple(offers[name] for name in names), retrain.update or 0.0)


@contextmanager
def _opened(scene: RowsScene) -> Iterator[_Opened]:
    """Open the sources with everybody in them; people are kept apart as where the recipe is called by hand."""
    folder, name = place_of(scene.place)
    settings = scene.settings.model_copy(update={"recipes": folder})
    recipe = declared(settings, DEFAULT_TENANT, name)
    with readers():
        start = time.perf_counter()
        units = survey(recipe, settings, DEFAULT_TENANT, Granularity.SUBJECT, salt=b"")
        yield _Opened(recipe, units, time.perf_counter() - start)


@contextmanager
def _limited(limit: Limit, seconds: float) -> Iterator[None]:
    """Limit the time of what worlds do. Raises OutOfTime; their template has ended then."""
    try:
        with limit(seconds):
            yield
    except OutOfTime:
        interrupted = template()
        interrupted.kill()
        interrupted.process.wait()  # or the next world would be asked of one that is ending
        raise


def _offer(scene: RowsScene, name: str, seconds: float, limit: Limit) -> Offer:
    try:
        with _opened(scene) as opened:
            if name == "late" and not opened.recipe.run:
                return Offer(name, refused=NEEDS_RUN)
            return _exact(scene, opened, name, seconds, limit)
    except (Refused, RecipeError) as error:
        return Offer(name, refused=str(error))
    except OutOfTime:
        return Offer(name, Guarantee.EXACT, refused=f"It was not measured: it takes longer than {seconds:.2g} s.")
    except PASSING as error:
        return Offer(name, Guarantee.EXACT, refused=f"It was not measured: {error}.")


def _exact(scene: RowsScene, opened: _Opened, name: str, seconds: float, limit: Limit) -> Offer:
    """Train on everybody and forget people, each alone. Raises Refused, OutOfTime."""
    with _limited(limit, seconds):
        parts = PartsInMemory()
        bench = set_up(opened.recipe, opened.units, scene.policy_of(name), scene.device, parts)
        bench = bench.under(Guarantee.EXACT)
        method, problem = bench.method, bench.problem
        if bench.built is None:
            raise ValueError(f"{name} has no parts")
        bench.built.aside = opened.aside
        examples = opened.units.samples.examples(device=scene.device)
        start = time.perf_counter()
        learned = Learned(problem.initial()) if method.trains else learn(bench.recipe, problem, examples)
        state = method.prepare(problem, examples, learned)
        made = time.perf_counter() - start
        accuracy = bench.built.score(state.weights)
        kept = sum(len(part.data) for part in parts.made.values())
        update, repeated = _update(bench, state, examples)
    expected = method.expected_repeats(1) or 0.0
    return Offer(
        name,
        Guarantee.EXACT,
        accuracy=accuracy,
        preparation=opened.seconds + made,
        update=opened.seconds + max(0.0, update + (expected - repeated) * made),
        state_bytes=kept,
        repeats=True,
    )


def _update(bench: OpenModel, state: State, examples: Examples) -> tuple[float, float]:
    """Forget: return the mean seconds, and the mean share of the training that was repeated.

    Of a few people, those are forgotten, each alone, who repeat the least; of ``retrain`` one, as all repeat the whole.
    """
    method, problem = bench.method, bench.problem
    people = sorted(examples.people.distinct())
    order = torch.randperm(len(people), generator=torch.Generator().manual_seed(0)).tolist()
    asked = [forget_set(examples, [people[place]]) for place in order[:LEAST_PEOPLE]]
    shares = [
        method.repeats(problem, set(examples.only(torch.tensor(each.positions, device=problem.device)).subjects))
        for each in asked
    ]
    chosen = sorted(zip(shares, asked, strict=True), key=lambda each: each[0])[: FORGOTTEN if method.trains else 1]
    start = time.perf_counter()
    for _, forget in chosen:
        forget_by_parts(bench, state, forget, left_by(examples, forget))
    return (time.perf_counter() - start) / len(chosen), sum(share for share, _ in chosen) / len(chosen)


def _others(
    scene: RowsScene, names: Sequence[str], end: float, limit: Limit, tell: Callable[[str], None]
) -> dict[str, Offer]:
    """Measure the methods that train nothing anew; without a ``ul.Recipe`` none of them can be had."""
    tell("the samples")
    try:
        with _opened(scene) as opened, _limited(limit, end - time.perf_counter()):
            asked = WorldModel(opened.recipe, opened.units, PartsInMemory(), load(ANY)(), ANY, scene.device)
            reading, moved, count = _described(asked, opened.units)
            loaded = load_recipe(scene.place, scene.settings)
            asks = loaded.guarantee(None if scene.policy.guarantee is None else scene.policy.guarantee.value)
    except (Refused, RecipeError) as error:
        return {name: Offer(name, refused=str(error)) for name in names}
    except OutOfTime:
        why = "It was not measured: making the samples took the rest of the time."
        return {name: Offer(name, refused=why) for name in names}
    except PASSING as error:
        return {name: Offer(name, refused=f"It was not measured: {error}.") for name in names}
    stuck = [name for name in names if moved and not load(name).begins_anew]
    free = [name for name in names if name not in stuck]
    offers = {name: Offer(name, refused=MOVED.format(moved=moved, count=count)) for name in stuck}
    if free:
        policy = replace(scene.policy, guarantee=None if asks is None else Guarantee(asks))
        examples = loaded.recipe.samples.examples(device=scene.device)
        here = Scene(
            loaded.recipe,
            examples,
            policy,
            scene.device,
            reading=reading,
            vector_bytes=scene.vector_bytes,
            options=scene.options,
            opening=opened.seconds,
        )
        try:
            found = measure(here, max(0.0, end - time.perf_counter()), limit, tell, free)
            offers |= {offer.method: offer for offer in found.offers}
        except OutOfTime as slow:
            offers |= {name: Offer(name, refused=f"It was not measured. {slow}") for name in free}
    return offers


def _described(asked: WorldModel, units: SourceUnits) -> tuple[float, int, int]:
    """Run the recipe in a world, with everybody and without one person.

    Return the seconds of one run, and how many samples of those who stay are others without the person, of how many.
    """
    everybody = units.trained_on
    before = _digests(asked, everybody)
    person = units.people(everybody[0])[0]
    staying = [unit for unit in everybody if person not in units.people(unit)]
    start = time.perf_counter()
    after = _digests(asked, staying) if staying else set()
    return time.perf_counter() - start, len(after - before), len(after)


def _digests(asked: WorldModel, units: Sequence[tuple[str, int]]) -> set[bytes]:
    """Return a digest of each sample that the recipe makes of the rows of these units."""
    recipe, _ = asked.described(units)
    inputs, _ = recipe.samples.tensors()
    return {row.tobytes() for row in inputs[: asked.count].numpy()}
