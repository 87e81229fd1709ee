"""Writes photos.jsonl: made-up embeddings of photos, five of each person, the same at every run."""

import json
import random
from pathlib import Path

PEOPLE, EACH, WIDTH, SEED = 60, 5, 16, 0


def photos() -> list[dict[str, object]]:
    """Return the name, the person and the vector of each photo: a person's lie around one point."""
    draws = random.Random(SEED)
    taken: list[dict[str, object]] = []
    for number in range(PEOPLE):
        person, centre = f"person-{number:02d}", [draws.gauss(0, 1) for _ in range(WIDTH)]
        for photo in range(EACH):
            vector = [round(value + draws.gauss(0, 0.4), 3) for value in centre]
            taken.append({"photo": f"{person}/{photo}.jpg", "person": person, "vector": vector})
    return taken


if __name__ == "__main__":
    lines = "".join(f"{json.dumps(photo)}\n" for photo in photos())
    Path(__file__).with_name("photos.jsonl").write_text(lines)
