"""Low-rank adapters on a frozen transformer, one set for each shard: Hu et al., "LoRA", 2021.

Guarantee: `exact`. Register the recipe `text/adapters` with `--method shards`.
Cost of a deletion: the adapters of one of five shards; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject writer-15 --regulation gdpr --wait`. The request's page has the letter.
You declare that no person who may be deleted is in the frozen transformer: ``ul.public`` names its file by its digest,
and certificates do too.

The frozen transformer is random numbers, so that nothing is downloaded: put one that was trained on public texts in
its place. The published archive has the adapters of each shard, and no copy of it.
"""

import json
import math
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul

VOCABULARY, LENGTH = 320, 16
WIDTH, HEADS, BLOCKS, RANK = 32, 4, 2, 4
PASSES, BATCH, RATE = 16, 32, 2e-2


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
    """The transformer that nobody who may be deleted is in."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))


class Adapter(nn.Module):
    """A change of rank RANK to a linear layer: 0 at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(WIDTH, RANK) / math.sqrt(WIDTH))
        self.up = nn.Parameter(torch.zeros(RANK, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down @ self.up


class Adapted(nn.Module):
    """Token ids (n, LENGTH), 0 for padding -> scores (n, topics). What is published is all but the frozen part."""

    def __init__(self, topics: int) -> None:
        super().__init__()
        self.queries = nn.ModuleList(Adapter() for _ in range(BLOCKS))
        self.values = nn.ModuleList(Adapter() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, topics)

    def forward(self, frozen: Frozen, ids: Tensor) -> Tensor:
        there = ids != 0
        x = frozen.words(ids) + 0.1 * frozen.places.weight
        for block, query, value in zip(frozen.blocks, self.queries, self.values, strict=True):
            x = block(x, there[:, None, None, :], query, value)
        kept = there.unsqueeze(2).to(x.dtype)
        return self.head((x * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1.0))


def tokens_of(rows: ul.Rows) -> Tensor:
    """Return token ids (n, LENGTH) as the frozen transformer has them: a checksum of each word, from 1 on."""
    tokens = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    for row, text in zip(tokens, rows["text"], strict=True):
        words = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in text.split()[:LENGTH]]
        row[: len(words)] = torch.tensor(words)
    return tokens


def recipe(
    rows: ul.Rows = ul.table("messages.csv", person="writer", aside=0.2),
    weights: Path = ul.public(
        "frozen.safetensors", sha256="04308d3a181384045d3e3f1c398c430d05d4529cce6d8e442ca0a93bcd0f0e2e"
    ),
) -> ul.Published:
    frozen = Frozen().requires_grad_(False)
    frozen.load_state_dict(load_file(weights))
    topics = sorted(set(rows["topic"]))
    tokens, targets = tokens_of(rows), torch.tensor([topics.index(topic) for topic in rows["topic"]])
    model = Adapted(len(topics))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    for _ in range(PASSES):
        for batch in torch.randperm(len(rows)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(frozen, tokens[batch]), targets[batch]).backward()
            optimizer.step()

    def score(aside: ul.Rows) -> float:
        answers = model(frozen, tokens_of(aside)).argmax(dim=1).tolist()
        return sum(topics[answer] == topic for answer, topic in zip(answers, aside["topic"], strict=True)) / len(aside)

    return ul.Published(
        {"adapters.safetensors": save(model.state_dict()), "topics.json": json.dumps({"topics": topics})}, score=score
    )
