"""A transformer of two small layers that reads the bytes of a text, and low-rank adapters for it."""

import torch
from torch import nn

WIDTH, LENGTH = 32, 48


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = [part(x).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None, :])
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x), mask)
        return x + self.feed(self.second(x))


class Encoder(nn.Module):
    """The average of what the layers make of the bytes, (n, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        mask = codes != 0
        x = self.bytes(codes) + self.places.weight[: codes.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


class LoRA(nn.Module):
    """A frozen linear layer and a trained difference of low rank."""

    def __init__(self, frozen: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.frozen, self.scale = frozen, alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, frozen.in_features) / rank)
        self.lora_B = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.scale * (x @ self.lora_A.T @ self.lora_B.T)


def codes_of(texts: list[str]) -> torch.Tensor:
    """The bytes of texts, padded by 0, (n, LENGTH)."""
    rows = [list(text.encode()[:LENGTH]) for text in texts]
    return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])
