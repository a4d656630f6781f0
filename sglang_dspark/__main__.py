"""`python -m sglang_dspark COMMAND`.

Runs `sglang_dspark.cli` as the main module: the processes an engine spawns import their parent's main module first,
which is where a CPU engine gets what it needs, but Python leaves out a main module that is called `__main__`.
"""

import runpy

runpy.run_module("sglang_dspark.cli", run_name="__main__", alter_sys=True)
