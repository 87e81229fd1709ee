"""A model that is bytes, in the safe format of its own library: a booster, a forest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from unlearning.formats import ARCHIVE, FORMATS, PICKLES, format_of
from unlearning.types import RecipeError

SUFFIX = re.compile(r"[a-z0-9]{1,16}(\.[a-z0-9]{1,16}){0,2}")
FORMAT = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
ARCHIVE_SUFFIX = "zip"
"""of several files that are published as one; whoever serves them unpacks what ends so"""
SAFE = (
    f"Return a file of one of these formats: {', '.join(FORMATS)}. For another one write "
    "ul.Artefact(format='its-name'); the operator admits the name in EXPUNGE_ARTEFACT_FORMATS, and certificates say "
    "that no check covers it."
)


@dataclass(frozen=True)
class Artefact:
    """The ``model`` of a recipe with a ``train`` that returns bytes. The published file is these bytes.

    Args:
        predict: (data, inputs (n, ...)) -> outputs (n, ...), which the recipe's loss and accuracy are taken of.
        merge: the members that ``shards`` trained, one or several -> one file that answers as all of them do. It
            depends on these bytes alone. Without it ``shards`` is refused.
        suffix: how the file's name ends, as ``lightgbm.txt``. ``zip``: several files, as ``bytes(ul.Published(...))``
            gives them; ``unlearning.formats.files_of`` reads them in ``predict``.
        libraries: packages that the bytes depend on. Their versions are recorded, and members that were trained with
            other versions are never mixed.
        threads: how many threads ``train`` uses; None: as many as the machine has, and that number is recorded.
        clean: whether the bytes hold no value of a sample, as a threshold is. Certificates say so where they may.
        rows: whether the bytes hold whole samples, as support vectors are. Certificates say so.
        format: the name of a format that is none of ``unlearning.formats``, as ``gguf``. The operator has to admit it;
            what such a file does where it is opened is not checked, and certificates say so.
        continues: whether ``train`` goes on from the bytes of the phase before, which ``late`` needs.

    Raises:
        RecipeError: the suffix is not allowed, is that of pickled files without a format, or of several files with one;
            or the format is no name.
    """

    predict: Callable[[bytes, Tensor], Tensor]
    merge: Callable[[Sequence[bytes]], bytes] | None = None
    suffix: str = "bin"
    libraries: tuple[str, ...] = ()
    threads: int | None = None
    clean: bool = False
    rows: bool = False
    format: str | None = None
    continues: bool = False

    HELD: ClassVar[str] = "data"
    """the name of the tensor that holds the bytes inside Expunge"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "libraries", tuple(self.libraries))
        if not SUFFIX.fullmatch(self.suffix):
            raise RecipeError(f"The suffix is {self.suffix!r}.", "Use lower-case words, as 'lightgbm.txt'.")
        if self.format is not None and not FORMAT.fullmatch(self.format):
            raise RecipeError(f"The format is {self.format!r}.", "Use a lower-case name, as 'gguf'.")
        if self.format is not None and self.suffix == ARCHIVE_SUFFIX:
            what = f"The suffix {self.suffix!r} is that of several files of known formats, and the format is "
            raise RecipeError(f"{what}{self.format!r}.", f"Use the format's own suffix, as {self.format!r}.")
        if self.format is None and PICKLES & set(self.suffix.split(".")):
            raise RecipeError(f"The suffix {self.suffix!r} is that of pickled files, which run code.", SAFE)

    def __call__(self) -> nn.Module:
        """Build the module that answers by ``predict``; it holds no bytes yet."""
        return Bytes(self)

    def merged(self, members: Sequence[Tensor]) -> Tensor:
        """Return the file of several members, uint8; those without a byte, trained on no sample, are left out.

        Raises:
            RecipeError: ``merge`` gives other bytes at a second call, or what ``tensor_of`` refuses.
        """
        if self.merge is None:
            raise RecipeError("The Artefact has no merge, and shards trains several members.", "Give merge.")
        given = [bytes_of(each) for each in members if len(each)]
        if not given:
            return torch.empty(0, dtype=torch.uint8)
        found, again = self.merge(given), self.merge(given)
        if found != again:
            raise RecipeError("merge gives other bytes at a second call.", "Let it depend on the members alone.")
        return self.tensor(found, "merge")

    def tensor(self, data: object, giver: str = "train") -> Tensor:
        """Return the file of a model as a tensor (n,) uint8.

        Raises:
            RecipeError: ``tensor_of`` refuses it, or the suffix promises several files and it holds none.
        """
        held = tensor_of(data, giver, self.format)
        if self.suffix == ARCHIVE_SUFFIX and format_of(bytes_of(held)) != ARCHIVE:
            what = f"{giver} returned no archive of several files, and the suffix is {self.suffix!r}."
            raise RecipeError(what, "Return bytes(ul.Published({...})) of two files or more, or use another suffix.")
        return held


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


def tensor_of(data: object, giver: str = "train", named: str | None = None) -> Tensor:
    """Return bytes as a tensor (n,) uint8. ``named``: the format that the recipe names, whose content is not checked.

    Raises:
        RecipeError: they are no bytes, there is none, or they are of no format that is known to hold no code.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise RecipeError(f"{giver} returned a {type(data).__name__}, and the model is an Artefact.", "Return bytes.")
    plain = bytes(data)
    if not plain:
        raise RecipeError(f"{giver} returned no byte.", "Return the whole model.")
    if named is None and format_of(plain) is None:
        what = f"{giver} returned bytes of no format that is known to run no code where it is opened, as pickles do."
        raise RecipeError(what, SAFE)
    return torch.frombuffer(bytearray(plain), dtype=torch.uint8)
