"""Fine-tune adapters on messages: is the author pleased? Saves the adapters as a folder, as peft does."""

import json
from pathlib import Path

import torch
from network import Encoder, LoRA, codes_of
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent
CONFIG = {"base_model": "base.pt", "r": 4, "lora_alpha": 8, "target_modules": ["query", "value"]}
EPOCHS = 6


def adapted() -> nn.Module:
    encoder = Encoder()
    encoder.load_state_dict(torch.load(HERE / CONFIG["base_model"]))
    encoder.requires_grad_(False)
    for layer in encoder.layers:
        for name in CONFIG["target_modules"]:
            frozen = getattr(layer.attention, name)
            setattr(layer.attention, name, LoRA(frozen, CONFIG["r"], CONFIG["lora_alpha"]))
    return nn.Sequential(encoder, nn.Linear(32, 2))


def main() -> None:
    torch.manual_seed(0)
    with open(HERE / "messages.jsonl") as file:
        messages = [json.loads(line) for line in file]
    x = codes_of([message["text"] for message in messages])
    y = torch.tensor([int(message["positive"]) for message in messages])
    order = torch.randperm(len(x))
    train, test = order[len(x) // 5 :], order[: len(x) // 5]

    model = adapted()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    for epoch in range(EPOCHS):
        for batch in train[torch.randperm(len(train))].split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(x[test]).argmax(dim=1) == y[test]).float().mean()
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")

    folder = HERE / "adapter"
    folder.mkdir(exist_ok=True)
    save_file(trained, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG, indent=2))


if __name__ == "__main__":
    main()
