"""Train a network that tells from a wrist sensor what its wearer does."""

from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

HERE = Path(__file__).parent
CHECKPOINT = HERE / "best.pt"
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


def main() -> None:
    torch.manual_seed(0)
    frame = pd.read_csv(HERE / "windows.csv")
    columns = [name for name in frame.columns if name.startswith("s")]
    classes = sorted(frame.activity.unique())
    mean, std = frame[columns].mean(), frame[columns].std()
    x = torch.tensor(((frame[columns] - mean) / std).to_numpy(), dtype=torch.float32)
    y = torch.tensor(frame.activity.map(classes.index).to_numpy())
    data = TensorDataset(x, y)
    train, valid = random_split(data, [0.9, 0.1], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    valid_loader = DataLoader(valid, batch_size=256)

    model = Network(len(columns), len(classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    best, waited = float("inf"), 0
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
            torch.save(
                {"model": model.state_dict(), "mean": mean.to_dict(), "std": std.to_dict(), "classes": classes},
                CHECKPOINT,
            )
        else:
            waited += 1
            if waited == PATIENCE:
                break


if __name__ == "__main__":
    main()
