"""`expunge lab attack`: below every honest claim, above each planted overclaim."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from expunge_client.cli.main import app
from expunge_lab.audit_epsilon import EXCEEDED, NOTHING, main
from expunge_lab.experiment.lower_bound import Noise, detectable_by_guesses, detectable_by_noise, from_noise, least_mu
from expunge_lab.experiment.two_worlds import attack, side_by_side
from expunge_workers.guarantee import certify, noise
from unlearning.accounting import budget, certificate, composition, policy
from unlearning.model import convex

RECIPES = Path(__file__).parents[2] / "tests" / "workers" / "recipes"
FEW = ["--noise-std", "0.001"]
"""few updates use the budget up, so that the whole of it is drawn quickly"""
SERVED: dict[str, tuple[str, list[str]]] = {
    "newton": ("convex", []),
    "recollection": ("convex", []),
    "mini": ("convex", []),
    "safe": ("convex", []),
    "retrain": ("steps", []),
}
"""every path with a claim that trials could refute: recipe and options"""
ATTACKS = {
    "proved": [
        *("forgotten", "forgotten", "as far as allowed", "versions compared", "whole budget"),
        *("distance measured", "noise measured", "noise of differences", "noise of sums"),
    ],
    "exact": ["forgotten", "forgotten"],
}


def attacked(
    capsys: pytest.CaptureFixture[str], method: str, *options: str, recipe: str = "convex", trials: int = 300
) -> tuple[int, dict[str, Any]]:
    """Run the command on one method; its exit status and its JSON."""
    small = ["--trials", str(trials), "--updates", "4", "--canaries", "2", "--device", "cpu", "--json"]
    status = main(["--recipe", str(RECIPES / f"{recipe}.py"), "--methods", method, *small, *(options or FEW)])
    return status, json.loads(capsys.readouterr().out)


def exceeding(found: dict[str, Any]) -> set[str]:
    return {row["attack"] for row in found["rows"] if row["exceeded"]}


@pytest.mark.parametrize("method", ["newton", "retrain"])
def test_an_honest_claim_is_not_exceeded(capsys: pytest.CaptureFixture[str], method: str) -> None:
    recipe, options = SERVED[method]
    status, found = attacked(capsys, method, *options, recipe=recipe)
    assert found["refused"] == {}
    assert (status, exceeding(found)) == (0, set())
    guarantee = found["rows"][0]["guarantee"]
    assert [row["attack"] for row in found["rows"]] == ATTACKS[guarantee]
    if guarantee == "exact":
        assert found["greatest_distance"] == {method: 0.0}


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", SERVED)
def test_no_claim_is_exceeded_in_ten_thousand_trials(capsys: pytest.CaptureFixture[str], method: str) -> None:
    recipe, options = SERVED[method]
    status, found = attacked(capsys, method, *options, recipe=recipe, trials=10_000)
    assert found["refused"] == {}
    assert (status, exceeding(found)) == (0, set())


# the planted overclaims


def without_the_renyi_order(patch: pytest.MonkeyPatch) -> None:
    """Epsilon as mu^2/2, the Renyi divergence at order 1, in place of what holds at delta."""
    for module in (certificate, composition, budget):
        patch.setattr(module, "epsilon_at", lambda mu, _: mu * mu / 2)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    true = noise.perturbed
    patch.setattr(certify, "perturbed", lambda weights, std, dtype, **_: true(weights, std / 2, dtype))


def one_draw_for_all_versions(patch: pytest.MonkeyPatch) -> None:
    def perturbed(weights: Tensor, std: float, dtype: torch.dtype, **_: Any) -> Tensor:
        drawn = torch.randn(len(weights), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        return (weights.double() + std * drawn).to(dtype)

    patch.setattr(certify, "perturbed", perturbed)


def one_draw_for_two_versions(patch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def perturbed(weights: Tensor, std: float, dtype: torch.dtype, **_: Any) -> Tensor:
        draws = torch.Generator().manual_seed(next(calls) // 2)
        return (weights.double() + std * torch.randn(len(weights), dtype=torch.float64, generator=draws)).to(dtype)

    patch.setattr(certify, "perturbed", perturbed)


def a_sensitivity_too_small(patch: pytest.MonkeyPatch) -> None:
    """What refining stops at and what is claimed are both a millionth of what they should be."""
    true = convex._Objective.bound
    patch.setattr(convex._Objective, "bound", lambda *given: true(*given) / 1e6)
    patch.setattr(convex, "TIGHTEN", tuple(each / 1e6 for each in convex.TIGHTEN))


def a_budget_that_forgets_releases(patch: pytest.MonkeyPatch) -> None:
    true: Callable[..., certificate.Claim] = certificate.Claim.of
    cost = budget.charge_of(1e-5, 1e-3)
    last_alone = lambda **fields: true(**(fields | {"spent": cost, "updates": 1}))  # noqa: E731
    patch.setattr(certificate.Claim, "of", last_alone)


def a_charge_of_a_quarter(patch: pytest.MonkeyPatch) -> None:
    true = budget.charge_of
    for module in (policy, certificate):
        patch.setattr(module, "charge_of", lambda *given: true(*given) // 4)


def delta_left_out(patch: pytest.MonkeyPatch) -> None:
    """Epsilon as if the certificate's delta were a thousand times what it says."""
    true = certificate.epsilon_at
    for module in (certificate, composition, budget):
        patch.setattr(module, "epsilon_at", lambda mu, delta: true(mu, min(0.5, 1000 * delta)))


OVERCLAIMS = {
    without_the_renyi_order: "noise measured",
    half_the_noise: "noise measured",
    one_draw_for_two_versions: "versions compared",
    a_sensitivity_too_small: "distance measured",
    a_budget_that_forgets_releases: "noise measured",
    one_draw_for_all_versions: "noise of differences",
    a_charge_of_a_quarter: "noise measured",
    delta_left_out: "noise measured",
}
"""each with an attack that must exceed it"""
FIVE = list(OVERCLAIMS)[:5]


@pytest.mark.parametrize(
    "plant",
    [*FIVE, *(pytest.param(each, marks=pytest.mark.drill) for each in OVERCLAIMS if each not in FIVE)],
    ids=lambda plant: plant.__name__,
)
def test_each_planted_overclaim_is_exceeded(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    plant(monkeypatch)
    status, found = attacked(capsys, "newton")
    assert found["refused"] == {}
    assert status == EXCEEDED
    assert OVERCLAIMS[plant] in exceeding(found)


# the smallest overclaim, with the worker's own noise


def exceeded_by_guesses(claimed: float, true: float, trials: int, audits: int) -> float:
    """The share of audits whose bound exceeds the claim where the true mu is ``true``."""
    worlds = [side_by_side(1, true)]
    publish = partial(noise.perturbed, noise_std=1.0)
    bounds = [least_mu(attack(worlds, publish, trials, torch.Generator().manual_seed(each))) for each in range(audits)]
    return sum(bound > claimed for bound in bounds) / audits


def exceeded_by_noise(ratio: float, numbers: int, audits: int) -> float:
    """The share of audits whose bound exceeds the claim where the noise is ``ratio`` times too small."""
    drawn = (Noise().and_of(noise.perturbed(torch.zeros(numbers), 1 / ratio)) for _ in range(audits))
    return sum(from_noise(each, 1.0, 1e-5).mu > 1.0 for each in drawn) / audits


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trials", [100, 1000])
@pytest.mark.parametrize("claimed", [0.0, 0.268])
def test_the_smallest_overclaim_is_found_by_guesses(trials: int, claimed: float) -> None:
    smallest, audits = detectable_by_guesses(claimed, trials), 50
    found = exceeded_by_guesses(claimed, smallest, trials, audits)
    honest = exceeded_by_guesses(claimed, claimed, trials, audits)
    print(f"{trials} trials, mu claimed {claimed}, true {smallest:.3g}: {found:.0%}, honest: {honest:.0%}")
    assert found >= 0.9 and honest == 0.0


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("numbers", [100, 1000, 10_000, 100_000])
def test_the_smallest_overclaim_is_found_by_measured_noise(numbers: int) -> None:
    smallest, audits = detectable_by_noise(1.0, numbers), 300
    found, honest = exceeded_by_noise(smallest, numbers, audits), exceeded_by_noise(1.0, numbers, audits)
    print(f"{numbers} numbers, true mu {smallest:.4g} times the claim: {found:.0%}, honest: {honest:.0%}")
    assert found >= 0.96 and honest == 0.0


# the command


def test_the_table_says_what_was_found_and_what_it_does_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--trials", "40", "--updates", "2", "--canaries", "1", *FEW]
    status = main(["--recipe", str(RECIPES / "convex.py"), "--methods", "newton,retrain,rewind", *small])
    printed = capsys.readouterr()
    told = " ".join(printed.out.split())
    assert status == 0
    assert "noise of differences" in told and "below the claim" in told
    assert "That proves nothing" in told and "rewind: The guarantee is none" in told
    assert "newton: proved. This takes about" in printed.err


def test_a_refuted_claim_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    half_the_noise(monkeypatch)
    small = ["--trials", "400", "--updates", "4", "--canaries", "1", *FEW]
    assert main(["--recipe", str(RECIPES / "convex.py"), "--methods", "newton", *small]) == EXCEEDED
    told = " ".join(capsys.readouterr().out.split())
    assert "exceeds the claim" in told
    assert "newton (noise measured)" in told.partition("REFUTED: ")[2]  # other attacks may exceed it too


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        ("steps", ["--methods", "newton"], "no claim that trials could refute"),
        ("convex", ["--methods", "newton", "--updates", "500"], "too few"),
        ("convex", ["--methods", "nothing"], "nothing"),
        ("convex", ["--options", "[]"], "JSON object"),
    ],
)
def test_where_nothing_can_be_attacked_it_says_why(
    capsys: pytest.CaptureFixture[str], recipe: str, options: list[str], said: str
) -> None:
    assert main(["--recipe", str(RECIPES / f"{recipe}.py"), *options]) == NOTHING
    printed = capsys.readouterr()
    assert said in " ".join((printed.out + printed.err).split())


def test_the_terminal_hands_its_options_and_exit_status_on(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def attack(arguments: list[str]) -> int:
        called.append(arguments)
        return EXCEEDED

    monkeypatch.setattr("expunge_lab.audit_epsilon.main", attack)
    done = CliRunner().invoke(app, ["lab", "attack", "--recipe", "here", "--trials", "5", "--json"])
    assert done.exit_code == EXCEEDED
    assert called == [["--recipe", "here", "--trials", "5", "--json"]]
