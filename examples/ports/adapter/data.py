"""Write messages.jsonl, 600 messages by 120 authors, and base.pt, a network trained on sentences of nobody. Made up."""

import json
from pathlib import Path

import numpy as np
import torch
from network import Encoder, codes_of
from torch import nn

HERE = Path(__file__).parent
GOOD = "great lovely quick friendly tasty warm perfect fresh".split()
BAD = "slow cold rude awful stale noisy dirty broken".split()
THINGS = "food staff room coffee table music service bed".split()
PLAIN = "the a this very quite our was here today".split()


def sentence(random: np.random.Generator, words: list[str]) -> str:
    return " ".join([*random.choice(PLAIN, 2), random.choice(THINGS), "was", random.choice(words)])


def main() -> None:
    random = np.random.default_rng(5)
    with open(HERE / "messages.jsonl", "w") as file:
        for _ in range(600):
            good = bool(random.integers(2))
            text = sentence(random, GOOD if good else BAD)
            file.write(json.dumps({"author": f"author-{random.integers(120)}", "text": text, "positive": good}) + "\n")

    # The base network tells the thing and the word of a sentence, so it has seen the words, and no person.
    torch.manual_seed(5)
    known = THINGS + GOOD + BAD
    encoder, head = Encoder(), nn.Linear(32, len(known))
    texts = [sentence(random, GOOD + BAD) for _ in range(800)]
    said = torch.tensor([[float(word in text.split()) for word in known] for text in texts])
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=5e-3)
    for batch in (batch for _ in range(12) for batch in torch.randperm(len(texts)).split(32)):
        optimizer.zero_grad()
        logits = head(encoder(codes_of([texts[k] for k in batch])))
        nn.functional.binary_cross_entropy_with_logits(logits, said[batch]).backward()
        optimizer.step()
    torch.save(encoder.state_dict(), HERE / "base.pt")


if __name__ == "__main__":
    main()
