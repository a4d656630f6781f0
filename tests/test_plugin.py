"""A plugin that cannot do its work stops the server: the engine would only log it and serve with its own worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# Hooks change the engine's modules for good, so each case has a process of its own: a fork of one that has imported
# what takes long.
_PROGRAM = """
import json, os, sys
from sglang_dspark.engine.cpu.bootstrap import install
install()
from sglang_dspark import contract, plugin
from sglang.srt.plugins.hook_registry import HookRegistry
import sglang.srt.managers.schedule_batch

said = {}
for name, code in json.load(sys.stdin).items():
    out, into = os.pipe()
    if os.fork() == 0:
        os.dup2(into, 1)
        try:
            exec(code)
        except BaseException as error:
            print(f"ended by {error!r}")
        sys.stdout.flush()
        os._exit(0)
    os.close(into)
    with open(out) as pipe:
        said[name] = pipe.read()
    os.wait()
print(json.dumps(said))
"""

_ACTIVATE = """
plugin.activate()
HookRegistry.apply_hooks()
from sglang.srt.speculative.dspark_components import dspark_worker_v2
"""
_START_WORKER = f"""{_ACTIVATE}
try:
    dspark_worker_v2.DSparkWorkerV2(server_args=None)
except RuntimeError as error:
    print(error)
"""
_CASES = {
    "an engine that differs": f"""
contract.ATTRIBUTES += ("sglang.srt.no_such_module.thing",)
contract.PINNED[contract.WORKER + "._forward_decode"] = "0" * 16
contract.ENGINE_VERSION = "0.0.1"
{_START_WORKER}
""",
    "broken settings": f"""
os.environ["SGLANG_DSPARK_CONFIG"] = '{{"policy": "best"}}'
{_START_WORKER}
""",
    "on": f"""{_ACTIVATE}
print(dspark_worker_v2.DSparkWorkerV2.__module__)
""",
    "off": f"""
os.environ["SGLANG_DSPARK_CONFIG"] = '{{"plugin": "off"}}'
from sglang_dspark.engine.cpu.hooks import RELIES_ON
assert not [f for f in contract.examine(RELIES_ON) if f.problem]
{_ACTIVATE}
print(dspark_worker_v2.DSparkWorkerV2.__module__)
""",
}


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What each case printed."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(_CASES),
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_engine_that_differs_refuses_to_start(said: dict[str, str]) -> None:
    """A missing attribute, changed source and another release are each named, in one message."""
    text = said["an engine that differs"]
    for named in ("does not start", "sglang.srt.no_such_module.thing", "._forward_decode", "install sglang==0.0.1"):
        assert named in text


def test_broken_settings_refuse_to_start(said: dict[str, str]) -> None:
    assert "--dspark-policy" in said["broken settings"]


def test_the_worker_takes_the_place_of_the_engines(said: dict[str, str]) -> None:
    assert said["on"].strip() == "sglang_dspark.engine.worker"


def test_plugin_off_leaves_the_stock_worker(said: dict[str, str]) -> None:
    assert said["off"].strip() == "sglang.srt.speculative.dspark_components.dspark_worker_v2"
