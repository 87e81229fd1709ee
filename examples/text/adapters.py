"""Low-rank adapters on a frozen transformer, one set for each shard: Hu et al., "LoRA", 2021.

Guarantee: `exact`. Register the recipe `text/adapters` with `--method shards`.
Cost of a deletion: the adapters of one of five shards, from the checkpoint before the person's slice; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject writer-15 --regulation gdpr --wait`. The request's page has the letter.
You declare that no person who may be deleted is in the frozen transformer: ``public`` names it by its digest. And that
``fit`` depends on ``run`` alone.

The frozen transformer is random numbers of a fixed seed, so that nothing is downloaded: put one that was trained on
public texts in its place (``safetensors.torch.load_file``). The published file holds a copy of it for each shard.
"""

import math

import torch
from messages import LENGTH, TOPICS, VOCABULARY, messages, tokens
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul

TRAIN, HELD, SEED = 900, 300, 0
PASSES, BATCH, RATE = 8, 32, 2e-2
WIDTH, HEADS, BLOCKS, RANK = 48, 4, 2, 4


class Block(nn.Module):
    """One layer of a transformer, whose queries and values an adapter may change."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor, query: nn.Module, value: nn.Module) -> Tensor:
        inside = F.layer_norm(x, (WIDTH,))
        parts = (self.query(inside) + query(inside), self.key(inside), self.value(inside) + value(inside))
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(F.layer_norm(x, (WIDTH,)))))


class Frozen(nn.Module):
    """The transformer that nobody who may be deleted is in; the same numbers on every machine."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(7)
            for value in self.parameters():
                value.copy_((torch.rand(value.shape) - 0.5) * math.sqrt(12 / value.shape[1]))
        self.requires_grad_(False)


class Adapter(nn.Module):
    """A change of rank RANK to a linear layer: 0 at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(WIDTH, RANK) / math.sqrt(WIDTH))
        self.up = nn.Parameter(torch.zeros(RANK, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down @ self.up


class Adapted(nn.Module):
    """Token ids (n, LENGTH), 0 for padding -> scores (n, topics)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Frozen()
        self.queries = nn.ModuleList(Adapter() for _ in range(BLOCKS))
        self.values = nn.ModuleList(Adapter() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, len(TOPICS))

    def forward(self, ids: Tensor) -> Tensor:
        there = ids != 0
        x = self.base.words(ids) + 0.1 * self.base.places.weight
        for block, query, value in zip(self.base.blocks, self.queries, self.values, strict=True):
            x = block(x, there[:, None, None, :], query, value)
        kept = there.unsqueeze(2).to(x.dtype)
        return self.head((x * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1.0))


def fit(run: ul.Run) -> dict[str, object]:
    trained = [value for value in run.model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    passes = max(1, round(PASSES * run.share))
    for number in range(passes):
        for batch in torch.randperm(len(run.inputs)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(run.model(run.inputs[batch]), run.targets[batch]).backward()
            optimizer.step()
        run.progress(number / passes)
    return {"optimizer": optimizer.state_dict()}


def recipe() -> ul.Recipe:
    written = messages(TRAIN + HELD)
    inputs = tokens([each.text for each in written])
    targets = torch.tensor([each.topic for each in written])
    return ul.Recipe(
        model=Adapted,
        samples=ul.Samples(
            ids=[each.id for each in written[:TRAIN]],
            subjects=[each.writer for each in written[:TRAIN]],
            inputs=inputs[:TRAIN],
            targets=targets[:TRAIN],
        ),
        holdout=(inputs[TRAIN:], targets[TRAIN:]),
        loss="cross_entropy",
        train=fit,
        seed=SEED,
        public={"base": "d17ed0acdadf25c71705fb3e78edebdda53295b6be643ab09d4831ec51ce7cf9"},
    )
