"""One rank of a training by DistributedDataParallel, as torchrun starts it: NCCL on cards, gloo on processors."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def main() -> None:
    """Train twice from one seed, and compare. Raises AssertionError where the weights differ in a bit."""
    on_cards = os.environ["EXPUNGE_TESTS_DEVICE"].startswith("cuda")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_cards else "cpu")
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl" if on_cards else "gloo")
    first, second = trained(device), trained(device)
    assert torch.equal(first, second), f"two trainings differ by {(first - second).norm():.3g}"
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} rank by {dist.get_backend()}, {len(first):,} weights, two runs equal in bits")
    dist.destroy_process_group()


def trained(device: torch.device) -> torch.Tensor:
    """Return the weights (d,) after a few steps from a fixed seed."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        inputs, classes = torch.randn(64, 32, device=device), torch.randint(10, (64,), device=device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()]).cpu()


if __name__ == "__main__":
    main()
