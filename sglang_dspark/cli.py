"""The command line: dispatch to the commands, and report the user's errors without a traceback.

As the main module it is also imported first by every process the engine spawns.
"""

from __future__ import annotations

import importlib
import os
import sys

from sglang_dspark import __version__
from sglang_dspark.engine.cpu.bootstrap import install
from sglang_dspark.errors import DSparkError

# Before torch or the engine is imported, in the parent and in each child: what a CPU engine needs to be importable.
install()

# Command -> (module with `main(argv) -> int`, what it does). Imported on use: `doctor` must not need the engine.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("sglang_dspark.serve", "start an OpenAI-compatible SGLang server that drafts with DSpark"),
    "calibrate": ("sglang_dspark.calibrate.main", "measure acceptance and calibrate the draft's confidences to it"),
    "train": ("sglang_dspark.train.main", "train a draft for a target model, make its training text, measure it"),
    "profile": ("sglang_dspark.profile.main", "measure what a round costs on this machine, for the schedule"),
    "ab": ("sglang_dspark.ab.main", "compare ways to serve: throughput per device at the speed users get"),
    "doctor": ("sglang_dspark.doctor", "say what this machine and this installation can do"),
}


def main(argv: list[str]) -> int:
    """Run one command; the exit status is 0 on success, 1 on failure, 2 on a usage error."""
    # Read by OpenMP when it is loaded, so before anything imports torch. Spinning threads cost up to 30x on few cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(__version__)
        return 0
    if argv[0] not in COMMANDS:
        print(f"error: unknown command {argv[0]!r}\n{_usage()}", file=sys.stderr)
        return 2
    try:
        status: int = importlib.import_module(COMMANDS[argv[0]][0]).main(argv[1:])
        return status
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _usage() -> str:
    commands = "\n".join(f"  {name:<9} {purpose}" for name, (_, purpose) in COMMANDS.items())
    return f"usage: python -m sglang_dspark COMMAND [flags]\n\n{commands}\n\nCOMMAND --help lists the flags."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
