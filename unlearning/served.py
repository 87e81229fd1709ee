"""Load a published version: one model, or several that answer as one, as ``shards`` published them in 0.2.0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from unlearning.artefact import Artefact, Bytes, tensor_of
from unlearning.recipe import Recipe, SampleLoss


class Ensemble(nn.Module):
    """Average the answers of ``members``.

    Args:
        members: modules with the same outputs.
        loss: what they were trained with. ``cross_entropy`` averages the probabilities and returns their logarithms;
            ``binary_logistic`` averages the probabilities and returns the logit; any other averages the outputs.

    To serve a published version: ``unlearning.published(recipe, safetensors.torch.load_file(path))``.
    """

    def __init__(self, members: Iterable[nn.Module], loss: str | SampleLoss) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.loss = loss if isinstance(loss, str) else "custom"

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([member(x) for member in self.members])
        match self.loss:
            case "cross_entropy":
                return outputs.log_softmax(dim=-1).logsumexp(dim=0) - torch.tensor(len(outputs)).log().to(outputs)
            case "binary_logistic":
                positive, negative = nn.functional.logsigmoid(outputs), nn.functional.logsigmoid(-outputs)
                return positive.logsumexp(dim=0) - negative.logsumexp(dim=0)
        return outputs.mean(dim=0)


class Stacked(nn.Module):
    """Weigh the log-probabilities of ``members`` by a linear layer, ``head``: S classifiers of K classes each."""

    def __init__(self, members: Iterable[nn.Module], classes: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.head = nn.Linear(len(self.members) * classes, classes)

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.head(torch.cat([member(x).log_softmax(dim=-1) for member in self.members], dim=-1))
        return answers


def published(
    model: Recipe | Callable[[], nn.Module],
    tensors: Mapping[str, Tensor] | bytes,
    loss: str | SampleLoss = "cross_entropy",
) -> nn.Module:
    """Return the module of a published version, ready to answer: one model, or several that answer as one.

    Args:
        model: the recipe, or what builds one model.
        tensors: the version's file, as ``safetensors.torch.load_file`` reads it; of an ``Artefact`` its bytes.
        loss: what the model was trained with; a recipe says so itself.

    Raises:
        RuntimeError: the names or shapes are not those of the model, nor of an ensemble of it.
        TypeError: bytes are given, and the model is no ``Artefact``.
        RecipeError: the bytes are of no known format.
    """
    build_one, loss = (model.model, model.loss) if isinstance(model, Recipe) else (model, loss)
    if isinstance(tensors, bytes):
        if not isinstance(build_one, Artefact):
            raise TypeError("The file is given as bytes, and the model is no Artefact. Read its tensors.")
        return Bytes(build_one, tensor_of(tensors, "the file")).eval()
    module = build_one()
    members = {name.split(".")[1] for name in tensors if name.startswith("members.")}
    if members and set(module.state_dict()) != set(tensors):
        models = [build_one() for _ in members]
        head = tensors.get("head.bias")
        module = Ensemble(models, loss) if head is None else Stacked(models, len(head))
    module.load_state_dict(tensors)
    return module.eval()
