"""A model that is bytes, in the safe format of its own library: a booster, a forest."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickletools  # nosec B403
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from unlearning.types import RecipeError

SUFFIX = re.compile(r"[a-z0-9]{1,16}(\.[a-z0-9]{1,16}){0,2}")
PICKLES = frozenset({"pkl", "pickle", "joblib", "dill", "pt", "pth", "sav"})
SAFE = "Return what the library's own safe format holds: a text, JSON or UBJSON model, or arrays without objects."
OPENED_BYTES = 2**24
"""of a compressed file that are looked at"""


@dataclass(frozen=True)
class Artefact:
    """The ``model`` of a recipe with a ``train`` that returns bytes. The published file is these bytes.

    Args:
        predict: (data, inputs (n, ...)) -> outputs (n, ...), which the recipe's loss and accuracy are taken of.
        merge: the members that ``shards`` trained, one or several -> one file that answers as all of them do. It
            depends on these bytes alone. Without it ``shards`` is refused.
        suffix: how the file's name ends, as ``lightgbm.txt``.
        libraries: packages that the bytes depend on. Their versions are recorded, and members that were trained with
            other versions are never mixed.
        threads: how many threads ``train`` uses; None: as many as the machine has, and that number is recorded.
        clean: whether the bytes hold no value of a sample, as a threshold is. Certificates say so where they may.
        rows: whether the bytes hold whole samples, as support vectors are. Certificates say so.

    Raises:
        RecipeError: the suffix is not allowed, or is that of pickled files.
    """

    predict: Callable[[bytes, Tensor], Tensor]
    merge: Callable[[Sequence[bytes]], bytes] | None = None
    suffix: str = "bin"
    libraries: tuple[str, ...] = ()
    threads: int | None = None
    clean: bool = False
    rows: bool = False

    HELD: ClassVar[str] = "data"
    """the name of the tensor that holds the bytes inside Expunge"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "libraries", tuple(self.libraries))
        if not SUFFIX.fullmatch(self.suffix):
            raise RecipeError(f"The suffix is {self.suffix!r}.", "Use lower-case words, as 'lightgbm.txt'.")
        if PICKLES & set(self.suffix.split(".")):
            raise RecipeError(f"The suffix {self.suffix!r} is that of pickled files, which run code.", SAFE)

    def __call__(self) -> nn.Module:
        """Build the module that answers by ``predict``; it holds no bytes yet."""
        return Bytes(self)

    def merged(self, members: Sequence[Tensor]) -> Tensor:
        """Return the file of several members, uint8; those without a byte, trained on no sample, are left out.

        Raises:
            RecipeError: ``merge`` gives something other than bytes, a pickle, or other bytes at a second call.
        """
        if self.merge is None:
            raise RecipeError("The Artefact has no merge, and shards trains several members.", "Give merge.")
        given = [bytes_of(each) for each in members if len(each)]
        if not given:
            return torch.empty(0, dtype=torch.uint8)
        found, again = self.merge(given), self.merge(given)
        if found != again:
            raise RecipeError("merge gives other bytes at a second call.", "Let it depend on the members alone.")
        return tensor_of(found, "merge")


class Bytes(nn.Module):
    """Answers by an artefact's ``predict``; the buffer ``data`` holds the model, uint8 (any length)."""

    data: Tensor

    def __init__(self, artefact: Artefact, data: Tensor | None = None) -> None:
        super().__init__()
        self.artefact = artefact
        self.register_buffer(Artefact.HELD, torch.empty(0, dtype=torch.uint8) if data is None else data)

    def forward(self, x: Tensor) -> Tensor:
        if not len(self.data):
            raise RecipeError("The model holds no byte: it is not trained.", "Train it first.")
        return self.artefact.predict(bytes_of(self.data), x)


def bytes_of(data: Tensor) -> bytes:
    """Return the bytes that a tensor (n,) uint8 holds."""
    return data.detach().cpu().numpy().tobytes()


def tensor_of(data: object, giver: str = "train") -> Tensor:
    """Return bytes as a tensor (n,) uint8.

    Raises:
        RecipeError: they are no bytes, there is none, or they are a pickle, also inside a compressed file.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise RecipeError(f"{giver} returned a {type(data).__name__}, and the model is an Artefact.", "Return bytes.")
    plain = bytes(data)
    if not plain:
        raise RecipeError(f"{giver} returned no byte.", "Return the whole model.")
    if is_pickle(plain):
        raise RecipeError(f"{giver} returned a pickle, which runs code where it is opened.", SAFE)
    return torch.frombuffer(bytearray(plain), dtype=torch.uint8)


def is_pickle(data: bytes, depth: int = 2) -> bool:
    """Tell whether the bytes are a pickle, or hold one: compressed, in a zip file, or as an array of objects."""
    if data.startswith(b"\x93NUMPY"):
        return b"|O" in data[:512]
    if depth and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            parts = [each for each in file.infolist() if each.file_size <= OPENED_BYTES]
            return any(is_pickle(file.read(each), depth - 1) for each in parts)
    for opened in _OPENED if depth else ():
        try:
            return is_pickle(opened(data), depth - 1)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
            continue  # not of this kind
    try:
        return any(code.name == "STOP" for code, _, _ in pickletools.genops(data))
    except Exception:  # a text that is no pickle fails in many ways
        return False


_OPENED: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: gzip.GzipFile(fileobj=io.BytesIO(data)).read(OPENED_BYTES),
    lambda data: zlib.decompressobj().decompress(data, OPENED_BYTES),
    lambda data: bz2.BZ2Decompressor().decompress(data, OPENED_BYTES),
    lambda data: lzma.LZMADecompressor().decompress(data, OPENED_BYTES),
)
