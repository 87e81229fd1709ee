"""Messages to a support desk, made by a fixed seed: 60 people write, each message is about one of four topics.

Put your own table of texts in the place of ``messages()``; ``tokens()`` is a tokenizer that was not fitted.
"""

import random
import re
import zlib
from dataclasses import dataclass

import torch

TOPICS = {
    "billing": "invoice refund charged twice payment card money price fee month cancel",
    "delivery": "parcel late driver address door tracking lost box arrived week shipping",
    "account": "password login email locked reset code sign username phone security",
    "product": "broken battery screen noise button warm crack light stopped cable",
}
COMMON = "the a my is was I you please help again since not it to and with still have very today why when"
PEOPLE, SEED = 60, 0
VOCABULARY, LENGTH = 512, 24
"""tokens, the padding 0 among them; and tokens of a message"""


@dataclass(frozen=True)
class Message:
    id: str
    writer: str
    text: str
    topic: int


def messages(count: int, seed: int = SEED) -> list[Message]:
    """Return messages: each word is a common one, or of the message's topic, or, one time in ten, of any topic."""
    draw = random.Random(seed)
    common, words = COMMON.split(), [text.split() for text in TOPICS.values()]
    found = []
    for number in range(count):
        topic = draw.randrange(len(words))
        said = []
        for _ in range(draw.randint(6, LENGTH)):
            kind = draw.random()
            source = common if kind < 0.6 else words[topic] if kind < 0.9 else draw.choice(words)
            said.append(draw.choice(source))
        writer = f"writer-{draw.randrange(PEOPLE):02d}"
        found.append(Message(f"message-{number:04d}", writer, " ".join(said), topic))
    return found


def tokens(texts: list[str]) -> torch.Tensor:
    """Return token ids (n, LENGTH), int64: a checksum of each word, from 1 on; 0 where the text has ended.

    A vocabulary that is counted on everybody's texts would show which words only the deleted used.
    """
    rows = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
    for row, text in zip(rows, texts, strict=True):
        for place, word in enumerate(re.findall(r"\w+", text.lower())[:LENGTH]):
            row[place] = 1 + zlib.crc32(word.encode()) % (VOCABULARY - 1)
    return rows
