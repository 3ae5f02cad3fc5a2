"""Makes `examples.demo_model`, which is no installed package, importable from the repository root."""

import sys
from pathlib import Path

import torch

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
torch.set_num_threads(1)
