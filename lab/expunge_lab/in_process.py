"""A model opened in this process, and the steps of an update as the service makes them, but that no world is asked.

The noise and the claim are the service's own code: an attack on them is one on what is published.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import torch

from expunge_service.queue import ForgottenCount
from expunge_workers.guarantee.certify import BOUND, Certified, require_certified
from expunge_workers.guarantee.certify import certify as certify_bounded
from expunge_workers.guarantee.terms import Terms
from expunge_workers.runtime.model import OpenModel, method_of
from unlearning.accounting.policy import Policy
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import Examples, Forgotten, State


def open_model(recipe: Recipe, policy: Policy, device: torch.device) -> OpenModel:
    """Set up the recipe's problem and the policy's method. Raises Refused, RecipeError, and as ``model()``."""
    method = method_of(policy)
    return opened(recipe, Problem(method.recipe(recipe), device), method)


def opened(recipe: Recipe, problem: Problem, method: Method) -> OpenModel:
    return OpenModel(recipe, problem, method, digest="", settings="")


def generator(device: torch.device) -> torch.Generator:
    """Return a generator for a method's own draws, seeded by the operating system. Not for the certificate's noise."""
    return torch.Generator(device).manual_seed(secrets.randbits(63))


def establish(bench: OpenModel, terms: Terms, examples: Examples, made: State) -> Terms:
    """Return the terms with the constants of the bound. Raises Refused where the bound is of no use."""
    bound = terms.bound(bench.method)
    if bound is None:
        return terms
    terms = replace(terms, constants=bound.constants(bench.problem, examples, made))
    bound.require_useful(bench.problem, examples, made, terms.max_distance, terms.values)
    return terms


def refine(bench: OpenModel, terms: Terms, forgotten: Forgotten, retain: Examples) -> Forgotten:
    """Move the weights until their bound is at most the greatest distance, and say it in the evidence."""
    bound = terms.bound(bench.method)
    if bound is None:
        return forgotten
    weights, distance = bound.refine(bench.problem, forgotten, retain, terms.max_distance, terms.values)
    evidence = {**forgotten.evidence, BOUND: distance}
    return replace(forgotten, state=replace(forgotten.state, weights=weights), evidence=evidence)


def certify(bench: OpenModel, terms: Terms, refined: Forgotten, size: ForgottenCount) -> Certified:
    """Draw the noise and claim. Raises Refused where nothing could be published."""
    return require_certified(certify_bounded(bench, terms, refined, size))
