"""Makes the engine importable on a machine without a GPU, as the launcher does, before any test module imports it."""

import os
import sys
from pathlib import Path

import torch

from sglang_dspark.engine.cpu.bootstrap import install

sys.path.insert(0, str(Path(__file__).parent))  # engine_process
if not torch.cuda.is_available():
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
install()
