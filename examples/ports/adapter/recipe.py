"""Adapters on a frozen network, fine-tuned on messages: is the author pleased? Published as a folder, as peft does."""

import json
from pathlib import Path

import torch
from network import Encoder, LoRA, codes_of
from safetensors.torch import save_file
from torch import nn

import unlearning as ul

CONFIG = {"base_model": "base.pt", "r": 4, "lora_alpha": 8, "target_modules": ["query", "value"]}
EPOCHS = 6


def adapted(base: Path) -> nn.Module:
    encoder = Encoder()
    encoder.load_state_dict(torch.load(base))
    encoder.requires_grad_(False)
    for layer in encoder.layers:
        for name in CONFIG["target_modules"]:
            frozen = getattr(layer.attention, name)
            setattr(layer.attention, name, LoRA(frozen, CONFIG["r"], CONFIG["lora_alpha"]))
    return nn.Sequential(encoder, nn.Linear(32, 2))


def recipe(
    rows: ul.Rows = ul.table("messages.jsonl", person="author", aside=0.2),
    base: Path = ul.public("base.pt", sha256="80f825483011bf0c98e754f0a931d0c06b95d40b3669449bce0b309e1c38d1e6"),
) -> ul.Published:
    torch.manual_seed(0)
    x = codes_of(list(rows["text"]))
    y = torch.tensor(rows["positive"]).long()

    model = adapted(base)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

    def score(apart: ul.Rows) -> float:
        with torch.no_grad():
            found = model(codes_of(list(apart["text"]))).argmax(dim=1)
        return float((found == torch.tensor(apart["positive"]).long()).float().mean())

    folder = Path("adapter")
    folder.mkdir(exist_ok=True)
    save_file(trained, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG, indent=2))
    return ul.Published({file.name: file.read_bytes() for file in folder.iterdir()}, score=score)
