"""Images by wavelet scattering and a softmax head: a network's accuracy, and a proof.

Guarantee: `proved`. Register with `--method newton --guarantee proved`.
Cost of a deletion: a few Newton steps on the head; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-020 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: the wavelets follow from the size of the images, and each image is normalised by itself.

``digits.parquet`` has scikit-learn's handwritten digits, each with a person. The published file holds the head: an
application calls ``build`` and loads it.
"""

import torch

import unlearning as ul
from unlearning.features import Scattering


def build() -> torch.nn.Module:
    """Images (n, 8, 8) -> scores (n, 10). Eight pixels leave room for one scale; images of 28 x 28 take two."""
    scattering = Scattering(8, 8, scales=1)
    return torch.nn.Sequential(scattering, torch.nn.Linear(scattering.size, 10))


def images_of(rows: ul.Rows) -> torch.Tensor:
    return (rows.tensor("pixels") / 16).reshape(-1, 8, 8)


def recipe(rows: ul.Rows = ul.table("digits.parquet", person="person", aside=0.2)) -> ul.Recipe:
    return ul.Recipe(
        model=build,
        samples=rows.samples(images_of(rows), rows.tensor("digit").long(), at=rows["__row"]),
        holdout=lambda apart: (images_of(apart), apart.tensor("digit").long()),
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=1e-4, converge=1e-10),
    )
