"""Small tensors: one thread is fastest, and pytest-xdist runs several of us side by side."""

import torch

torch.set_num_threads(1)
