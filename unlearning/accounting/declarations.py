"""What a claim declares or assumes of the recipe, in the claim's words, and in one plain sentence for the person.

Standard library only: workers write the claims, and the service writes the letters.
"""

from __future__ import annotations

from collections.abc import Iterable

from unlearning.accounting.world import plain_of

FITTED = (
    "Architecture, features, scaling, feature selection, hyperparameters and noise_std belong to the reference as they "
    "are. Nothing of them was fitted on people who may be deleted."
)
ARGUMENTS = "model(), the loss and the training use nothing that was computed from these people but the samples."
PUBLIC = (
    "No person who may be deleted is in the parts that are marked public. That is the operator's word; if a deleted "
    "person is in them, this claim says nothing about it."
)
CHOSEN = (
    "The method was chosen by the counts of samples and features, the deleted people's samples included. It is a "
    "setting that the reference keeps."
)
FOREIGN = "The method is no part of Expunge. What this claim says of it is the word of its package, "
"""how the sentence begins about a method of another package, whose name and version follow"""
_PLAIN = {
    FITTED: "Features, scaling and settings were not made from {data}.",
    ARGUMENTS: "Training used nothing computed from {data} but the records themselves.",
    PUBLIC: "Parts that are marked public hold nothing of {data}.",
    CHOSEN: "The method was chosen by counts that include {data}.",
}


def plain(declared: Iterable[str], assumed: Iterable[str], data: str) -> tuple[str, ...]:
    """Return a plain sentence for each line declared, and for each line assumed that has one; each once, in order.

    A declared line without a plain sentence stands as it is. ``data``: such as "your data", what the claim is about.
    """
    lines = (*declared, *(line for line in assumed if has_plain(line)))
    return tuple(dict.fromkeys(_plain(line).format(data=data) if has_plain(line) else line for line in lines))


def has_plain(line: str) -> bool:
    """Tell whether the line has a plain sentence."""
    return line in _PLAIN or line.startswith(FOREIGN) or plain_of(line) is not None


def _plain(line: str) -> str:
    foreign = "The method is another package's, and we take that package's word."
    return _PLAIN.get(line) or plain_of(line) or foreign
