"""The glossary is binding, and the figures in docs/certificates.md are what the code gives."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import NormalDist

import pytest

from unlearning.accounting.certificate import Claim, Guarantee, mu_at
from unlearning.accounting.policy import Policy

DOCS = Path(__file__).parents[2] / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text()
PAGE = (DOCS / "certificates.md").read_text()
DEFINED = " ".join(re.findall(r"\*\*(.+?)\*\*", GLOSSARY)).lower()

HOUSE_VOCABULARY = (
    "data subject, controller, deletion request, deadline, reason, suppression entry, sample, generation, checkpoint, "
    "version, head, update, certificate, claim, guarantee, budget, audit log, recollection, retrain, scheduler, lease"
)


@pytest.mark.parametrize("term", HOUSE_VOCABULARY.split(", "))
def test_the_glossary_defines_the_house_vocabulary(term: str) -> None:
    assert term in DEFINED


def test_the_page_explains_every_field_and_every_guarantee() -> None:
    fields = set(Claim.__dataclass_fields__) - {"method", "updates"}
    assert {name for name in fields if f"`{name}`" not in PAGE} == set()
    assert {guarantee for guarantee in Guarantee if f"| `{guarantee.value}` |" not in PAGE} == set()


@pytest.mark.parametrize(("epsilon", "percent"), [(1, 8.5), (10, 64)])
def test_the_detection_rates_on_the_page_follow_from_the_curve(epsilon: float, percent: float) -> None:
    normal = NormalDist()
    rate = 100 * normal.cdf(normal.inv_cdf(0.05) + mu_at(epsilon, 1e-5))
    assert rate == pytest.approx(percent, abs=0.6) and f"{percent} %" in PAGE


def test_the_defaults_on_the_page_are_the_policys() -> None:
    policy = Policy("recollection")
    assert (policy.noise_std, policy.max_distance, policy.epsilon, policy.delta) == (0.01, 1e-5, 1.0, 1e-5)
    assert 68_000 < policy.budget(Guarantee.PROVED).updates_left < 72_000 and "70,000 updates" in PAGE
