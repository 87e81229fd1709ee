"""Texts by a transformer that is trained from nothing: embeddings, attention, dropout, and an AdamW loop.

Guarantee: `exact`. Register with `--method shards`, and `--option shards=5 --option slices=4` for another number of
models or of checkpoints.
Cost of a deletion: one of the five models, from the checkpoint before the person's slice; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject writer-15 --regulation gdpr --wait`. The request's page has the letter.
You declare that ``fit`` depends on ``run`` alone. The tokenizer is a checksum of each word, fitted on nothing.
"""

import torch
from messages import LENGTH, TOPICS, VOCABULARY, messages, tokens
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul

TRAIN, HELD, SEED = 900, 300, 0
PASSES, BATCH, RATE = 8, 32, 5e-3


class Classifier(nn.Module):
    """Token ids (n, LENGTH), 0 for padding -> scores (n, topics)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(TOPICS))

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == 0
        encoded = self.encoder(self.words(ids) + self.places, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(2).to(encoded.dtype)
        return self.head((encoded * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1.0))


def fit(run: ul.Run) -> dict[str, object]:
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=RATE, weight_decay=0.01)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    passes = max(1, round(PASSES * run.share))
    for number in range(passes):
        for batch in torch.randperm(len(run.inputs)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(run.model(run.inputs[batch]), run.targets[batch]).backward()
            nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            optimizer.step()
        run.progress(number / passes)
    return {"optimizer": optimizer.state_dict()}


def recipe() -> ul.Recipe:
    written = messages(TRAIN + HELD)
    inputs = tokens([each.text for each in written])
    targets = torch.tensor([each.topic for each in written])
    return ul.Recipe(
        model=Classifier,
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
    )
