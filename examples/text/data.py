"""Write messages.csv: messages to a support desk; and frozen.safetensors, a transformer of random numbers.

60 people write. Each word is a common one, or of the message's topic, or, one time in ten, of any topic.
"""

import csv
import random
from pathlib import Path

import torch
from adapters import Frozen
from safetensors.torch import save_file

TOPICS = {
    "billing": "invoice refund charged twice payment card money price fee month cancel",
    "delivery": "parcel late driver address door tracking lost box arrived week shipping",
    "account": "password login email locked reset code sign username phone security",
    "product": "broken battery screen noise button warm crack light stopped cable",
}
COMMON = "the a my is was I you please help again since not it to and with still have very today why when"
MESSAGES, PEOPLE, WORDS, SEED = 720, 60, (6, 16), 0

draw = random.Random(SEED)
common, words = COMMON.split(), {topic: text.split() for topic, text in TOPICS.items()}
with Path(__file__).with_name("messages.csv").open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["writer", "topic", "text"])
    for _ in range(MESSAGES):
        topic, text = draw.choice(list(words)), []
        for _ in range(draw.randint(*WORDS)):
            kind = draw.random()
            source = common if kind < 0.5 else words[topic] if kind < 0.9 else words[draw.choice(list(words))]
            text.append(draw.choice(source))
        writer.writerow([f"writer-{draw.randrange(PEOPLE):02d}", topic, " ".join(text)])

torch.manual_seed(SEED)
frozen = {}
for name, value in Frozen().state_dict().items():
    frozen[name] = ((torch.rand(value.shape) - 0.5) * (12 / value.shape[1]) ** 0.5).half()
save_file(frozen, Path(__file__).with_name("frozen.safetensors"))
