"""Texts by a transformer that is trained from nothing: embeddings, attention, dropout, and an AdamW loop.

Guarantee: `exact`. Register with `--method shards`: five models, each on a fifth of the people and with words of its
own, in one archive. `--option shards=3` trains three.
Cost of a deletion: one of the five is trained again; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject writer-15 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: the words and topics are those of the people who are here.

``messages.csv`` has messages to a support desk; put your own table in its place.
"""

import json

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul

LENGTH, PASSES, BATCH, RATE = 16, 16, 32, 5e-3


class Classifier(nn.Module):
    """Word numbers (n, LENGTH), 0 for padding -> scores (n, topics)."""

    def __init__(self, words: int, topics: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words + 1, width, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, topics)

    def forward(self, numbers: Tensor) -> Tensor:
        padding = numbers == 0
        encoded = self.encoder(self.words(numbers) + self.places, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(2).to(encoded.dtype)
        return self.head((encoded * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1.0))


def numbers_of(rows: ul.Rows, words: list[str]) -> Tensor:
    """Return the numbers of the known words of each text, (n, LENGTH), from 1 on; 0 where the text has ended."""
    number = {word: place for place, word in enumerate(words, 1)}
    numbers = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    for row, text in zip(numbers, rows["text"], strict=True):
        known = [number[word] for word in text.split() if word in number][:LENGTH]
        row[: len(known)] = torch.tensor(known)
    return numbers


def recipe(rows: ul.Rows = ul.table("messages.csv", person="writer", aside=0.2)) -> ul.Published:
    words, topics = sorted({word for text in rows["text"] for word in text.split()}), sorted(set(rows["topic"]))
    numbers, targets = numbers_of(rows, words), torch.tensor([topics.index(topic) for topic in rows["topic"]])
    model = Classifier(len(words), len(topics))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    for _ in range(PASSES):
        for batch in torch.randperm(len(rows)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(numbers[batch]), targets[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    model.eval()

    def score(aside: ul.Rows) -> float:
        answers = model(numbers_of(aside, words)).argmax(dim=1).tolist()
        return sum(topics[answer] == topic for answer, topic in zip(answers, aside["topic"], strict=True)) / len(aside)

    files = {
        "model.safetensors": save(model.state_dict()),
        "words.json": json.dumps({"words": words, "topics": topics}),
    }
    return ul.Published(files, score=score)
