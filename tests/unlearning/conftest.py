"""Small tensors: one thread is fastest, and pytest-xdist runs several of us side by side."""

import torch

from unlearning.methods.recollection import vectors

torch.set_num_threads(1)
vectors.SPECTRUM_POINTS = 2
"""a report measures the curvature at five steps of a training: most of what the preparation of a small model takes"""
