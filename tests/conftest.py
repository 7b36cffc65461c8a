"""Every test computes with one thread: bits depend on it."""

import torch

torch.set_num_threads(1)
