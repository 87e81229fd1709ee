"""A network that tells from a wrist sensor what its wearer does: early stopping, the best checkpoint is kept."""

import json

import torch
from safetensors.torch import load, save
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unlearning as ul

EPOCHS, PATIENCE = 60, 6


class Network(nn.Module):
    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    loss = correct = count = 0
    with torch.no_grad():
        for x, y in loader:
            logits = model(x)
            loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
            correct += (logits.argmax(dim=1) == y).sum().item()
            count += len(y)
    return loss / count, correct / count


def recipe(rows: ul.Rows = ul.table("windows.csv", person="wearer", aside=0.2)) -> ul.Published:
    torch.manual_seed(0)
    frame = rows.pandas()
    columns = [name for name in frame.columns if name.startswith("s")]
    classes = sorted(frame.activity.unique())
    mean, std = frame[columns].mean(), frame[columns].std()

    def loader(some: ul.Rows, batch: int, shuffle: bool = False) -> DataLoader:
        frame = some.pandas()
        x = torch.tensor(((frame[columns] - mean) / std).to_numpy(), dtype=torch.float32)
        y = torch.tensor(frame.activity.map(classes.index).to_numpy())
        return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=shuffle, drop_last=shuffle)

    train, valid = rows.split(0.1)
    train_loader, valid_loader = loader(train, 64, shuffle=True), loader(valid, 256)

    model = Network(len(columns), len(classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    best, waited, files = float("inf"), 0, {}
    for epoch in range(EPOCHS):
        model.train()
        for batch, labels in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
        loss, accuracy = evaluate(model, valid_loader)
        print(f"epoch {epoch}: validation loss {loss:.4f}, accuracy {accuracy:.3f}")
        if loss < best:
            best, waited = loss, 0
            scaling = {"mean": mean.to_dict(), "std": std.to_dict(), "classes": classes}
            files = {"model.safetensors": save(model.state_dict()), "scaling.json": json.dumps(scaling)}
        else:
            waited += 1
            if waited == PATIENCE:
                break

    def score(apart: ul.Rows) -> float:
        model.load_state_dict(load(files["model.safetensors"]))
        return evaluate(model, loader(apart, 256))[1]

    return ul.Published(files, score=score)
