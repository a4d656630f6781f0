"""One process of a data-parallel run: `torchrun`'s environment, arguments of `train run`."""

from __future__ import annotations

import sys

import torch

from sglang_dspark.train.main import main

torch.set_num_threads(1)
sys.exit(main(sys.argv[1:]))
