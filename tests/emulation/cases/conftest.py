"""These tests need the sanitizers' environment; `../test_emulation.py` starts them with it."""

import os

collect_ignore_glob = [] if "DSPARK_EMULATION_MODULE" in os.environ else ["test_*.py"]
