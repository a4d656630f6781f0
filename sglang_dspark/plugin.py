"""Entry point of the `sglang.srt.plugins` group: puts this project's worker in the place of the engine's.

The engine only logs a plugin that raises, and then starts without it. So nothing raises here: on trouble the worker
class is replaced by one whose construction fails with the reason, and the server stops at start.
"""

from __future__ import annotations

import logging
import os

from sglang_dspark import contract
from sglang_dspark.config import DSparkConfig

logger = logging.getLogger(__name__)


def activate() -> None:
    """Register the hooks of this process. Called by the engine in its launcher and in every process it starts."""
    try:
        _activate()
    except Exception as error:
        logger.exception("sglang_dspark could not be activated")
        _refuse(error)


def _activate() -> None:
    config = DSparkConfig.from_environment()
    cpu = on_cpu()
    if cpu:
        from sglang_dspark.engine.cpu.hooks import RELIES_ON, register_cpu_hooks

        contract.check(extra=RELIES_ON)
        register_cpu_hooks(attention=config.cpu_attention, layer_code=config.cpu_layers)
    elif config.plugin == "on":
        contract.check()
    if config.plugin == "off":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_dspark.engine import draft_vocabulary, seeds
    from sglang_dspark.engine.worker import DSparkWorker

    # The confidence head is built, and graphs are captured per token count, only in the engine's compact mode.
    os.environ.setdefault("SGLANG_RAGGED_VERIFY_MODE", "compact")
    HookRegistry.register(contract.WORKER, DSparkWorker, HookType.REPLACE)
    draft_vocabulary.register_hook()
    seeds.register_hooks()


def on_cpu() -> bool:
    """Whether the engine of this process serves on the CPU."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"


def _refuse(error: Exception) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    message = f"sglang_dspark could not be activated, so the server does not start: {error}"

    class RefusingWorker:
        def __init__(self, *_args: object, **_kwargs: object) -> None:
            raise RuntimeError(message)

    HookRegistry.register(contract.WORKER, RefusingWorker, HookType.REPLACE)
