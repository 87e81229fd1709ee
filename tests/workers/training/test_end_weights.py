"""A method that starts from the weights alone, after a training whose steps nobody could follow."""

from __future__ import annotations

import torch
from safetensors.torch import load

from expunge_workers.guarantee import statements
from tests.workers.rows.data import published
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def test_it_forgets_after_any_training_and_claims_nothing(world: World) -> None:
    model_id = world.live("built_in_training", "cns", options={"damping": 3.0})
    before = load(published(world, model_id))
    request = world.delete("p3")
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.epsilon) == ("cns", Guarantee.NONE, None)
    assert statements.BUFFERS in claim.secret_state
    after = load(published(world, model_id))
    names = [name for name in after if name.endswith(STATISTICS)]
    assert len(names) == 3
    assert all(torch.equal(after[name], before[name]) for name in names), "buffers get neither a step nor noise"
    assert not [name for name in after if name not in names and torch.equal(after[name], before[name])]
