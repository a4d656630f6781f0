from __future__ import annotations

import sys
from pathlib import Path

# This folder's synthetic draws are imported by their bare name.
sys.path.insert(0, str(Path(__file__).parent))
