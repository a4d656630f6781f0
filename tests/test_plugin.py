"""A plugin that cannot do its work stops the server: the engine would only log it and serve with its own worker."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

# Hooks change the engine's modules for good, so each case has a process of its own.
_PRELUDE = """
from sglang_dspark.engine.cpu.bootstrap import install
install()
from sglang_dspark import contract, plugin
from sglang.srt.plugins.hook_registry import HookRegistry
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + textwrap.dedent(code)],
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "PASSIVE", **environment},
        capture_output=True,
        text=True,
        timeout=180,
    )


_START_WORKER = """
    plugin.activate()
    HookRegistry.apply_hooks()
    from sglang.srt.speculative.dspark_components import dspark_worker_v2
    try:
        dspark_worker_v2.DSparkWorkerV2(server_args=None)
    except RuntimeError as error:
        print(error)
"""


def test_an_engine_that_differs_refuses_to_start() -> None:
    """A missing attribute, changed source and another release are each named, in one message."""
    trouble = """
        contract.ATTRIBUTES += ("sglang.srt.no_such_module.thing",)
        contract.PINNED[contract.WORKER + "._forward_decode"] = "0" * 16
        contract.ENGINE_VERSION = "0.0.1"
    """
    done = run(textwrap.dedent(trouble) + textwrap.dedent(_START_WORKER))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "does not start" in done.stdout
    for named in ("sglang.srt.no_such_module.thing", "._forward_decode", "install sglang==0.0.1"):
        assert named in done.stdout


def test_broken_settings_refuse_to_start() -> None:
    done = run(_START_WORKER, SGLANG_DSPARK_CONFIG='{"policy": "best"}')
    assert "--dspark-policy" in done.stdout, done.stderr[-2000:]


def test_the_worker_takes_the_place_of_the_engines() -> None:
    done = run(
        """
        plugin.activate()
        HookRegistry.apply_hooks()
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        from sglang.srt.speculative.dspark_components import dspark_worker_v2
        print(dspark_worker_v2.DSparkWorkerV2.__module__)
        """
    )
    assert done.stdout.strip() == "sglang_dspark.engine.worker", done.stderr[-2000:]


def test_plugin_off_leaves_the_stock_worker() -> None:
    done = run(
        """
        from sglang_dspark.engine.cpu.hooks import RELIES_ON
        assert not [f for f in contract.examine(RELIES_ON) if f.problem]
        plugin.activate()
        HookRegistry.apply_hooks()
        from sglang.srt.speculative.dspark_components import dspark_worker_v2
        print(dspark_worker_v2.DSparkWorkerV2.__module__)
        """,
        SGLANG_DSPARK_CONFIG='{"plugin": "off"}',
    )
    assert done.stdout.strip() == "sglang.srt.speculative.dspark_components.dspark_worker_v2", done.stderr[-2000:]
