"""Writes questions.csv: made-up questions to a help desk, five of each writer, the same at every run."""

import csv
import random
from pathlib import Path

WRITERS, EACH, SEED = 60, 5, 0
TOPICS = {
    "billing": "invoice refund card payment charged twice receipt tax",
    "access": "password login locked account code mail reset",
    "delivery": "parcel late address courier tracking lost box",
    "device": "screen battery cable broken charger noise warm",
    "booking": "train seat date cancel ticket change hotel",
}
EVERYDAY = "please help with my since monday again why does not work today thanks"


def questions() -> list[tuple[int, str, str]]:
    """Return the number, the writer and the text of each question; a writer mostly asks about one topic."""
    draws = random.Random(SEED)
    written = []
    for writer in range(WRITERS):
        usual = draws.choice([*TOPICS])
        for _ in range(EACH):
            topic = usual if draws.random() < 0.7 else draws.choice([*TOPICS])
            words = draws.sample(TOPICS[topic].split(), 4) + draws.sample(EVERYDAY.split(), 5)
            draws.shuffle(words)
            written.append((draws.randrange(10**9), f"writer-{writer:02d}", " ".join(words)))
    return written


if __name__ == "__main__":
    with Path(__file__).with_name("questions.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("question", "writer", "text"), *questions()])
