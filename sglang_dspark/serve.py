"""`serve`: any SGLang `launch_server` flag, plus DSpark's own; no model flag means the demo pair."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_dspark import config, contract
from sglang_dspark.errors import ConfigError
from sglang_dspark.preflight import preflight

_DESCRIPTION = """Start an OpenAI-compatible SGLang server that drafts with DSpark.

Every flag of sglang.launch_server is accepted and passed on. Without --model-path the demo pair is served: a small
instruction-tuned target and the draft trained for it. DSpark's own flags:"""

# What a CPU engine needs; each can be overridden by giving the flag.
_CPU_DEFAULTS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--dtype": "float32",
}
# The demo on a laptop: by default the engine would take most of the memory for its cache.
_DEMO_DEFAULTS = {"--max-total-tokens": "65536", "--max-running-requests": "48", "--served-model-name": "dspark-demo"}


def main(argv: list[str]) -> int:
    """Check, then run the server in this process until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dspark serve",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    config.add_flags(parser)
    parser.add_argument(
        "--dspark-draft",
        metavar="PATH",
        help="Draft checkpoint (same as --speculative-draft-model-path), or none: serve without speculation.",
    )
    arguments, flags = parser.parse_known_args(argv)
    unknown = [flag for flag in flags if flag.startswith("--dspark-")]
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such flag; see python -m sglang_dspark serve --help")
    settings = config.from_flags(arguments)

    engine_flags = EngineFlags(flags)
    on_cpu = _choose_device(engine_flags)
    if on_cpu:
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    version = contract.engine_version()
    if version != contract.ENGINE_VERSION:
        raise ConfigError(f"sglang {version} is installed; install sglang=={contract.ENGINE_VERSION}")
    demo = _choose_models(engine_flags, arguments.dspark_draft)
    for name, value in {**(_CPU_DEFAULTS if on_cpu else {}), **(_DEMO_DEFAULTS if demo else {})}.items():
        engine_flags.default(name, value)
    engine_flags.default("--enable-metrics")
    # Nothing runs beside the CPU: there, overlapped scheduling only makes every finished request one round late.
    if settings.overlap == "off" or (settings.overlap == "auto" and on_cpu):
        engine_flags.default("--disable-overlap-schedule")
    if on_cpu:
        # An idle scheduler polls, which takes one of few cores from whatever else runs.
        engine_flags.default("--sleep-on-idle")
    if on_cpu and not engine_flags.has("--enable-torch-compile"):
        # The engine compiles a few one-line helpers on first use, which stops a CPU server for half a minute.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    reading = preflight(engine_flags, settings, on_cpu)
    if reading is not None and not reading.config.enable_confidence_head:
        # The engine's compact mode demands a confidence head; its static round serves a draft without one.
        os.environ["SGLANG_RAGGED_VERIFY_MODE"] = "static"
    return _run(engine_flags.argv, settings, speculative=engine_flags.get("--speculative-algorithm") == "DSPARK")


class EngineFlags:
    """The flags meant for SGLang, as given on the command line: look one up, add one, remove one."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = [part for flag in argv for part in (flag.split("=", 1) if flag.startswith("--") else [flag])]

    def has(self, name: str) -> bool:
        return name in self.argv

    def get(self, name: str) -> str | None:
        """The value that follows the flag, None when it is absent or has none."""
        if name not in self.argv:
            return None
        place = len(self.argv) - 1 - self.argv[::-1].index(name)
        value = self.argv[place + 1] if place + 1 < len(self.argv) else None
        return None if value is None or value.startswith("--") else value

    def default(self, name: str, value: str | None = None) -> None:
        if not self.has(name):
            self.argv += [name] if value is None else [name, value]


def _choose_device(flags: EngineFlags) -> bool:
    """Whether the engine will serve on the CPU: asked for, or nothing else is there."""
    device = flags.get("--device")
    if device is not None:
        return device == "cpu"
    import torch

    accelerator = torch.cuda.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available())
    return not accelerator and not hasattr(torch, "npu")


def _choose_models(flags: EngineFlags, draft: str | None) -> bool:
    """Fill in target and draft; True when the demo target is served.

    Raises:
        ConfigError: two drafts were named, or none can be found for a model given by path.
    """
    given = flags.get("--speculative-draft-model-path")
    algorithm = flags.get("--speculative-algorithm")
    if draft is not None and given is not None and draft != given:
        raise ConfigError(f"--dspark-draft {draft} and --speculative-draft-model-path {given}: give one of them")
    draft = draft or given
    model = flags.get("--model-path") or flags.get("--model")
    demo = model is None
    if model is None:
        from sglang_dspark.model.demo_target import ensure_demo_target

        model = str(ensure_demo_target())
        flags.default("--model-path", model)
    if algorithm not in (None, "DSPARK") or (draft == "none"):
        if draft == "none" and algorithm == "DSPARK":
            raise ConfigError("--dspark-draft none and --speculative-algorithm DSPARK contradict each other")
        return demo
    if draft is None and demo:
        from sglang_dspark.model.demo import demo_draft_path

        draft = str(demo_draft_path())
    if draft is None and not _bundles_draft(Path(model)):
        raise ConfigError(
            f"--model-path {model}: no draft was given. Name one with --dspark-draft PATH (train one with "
            "python -m sglang_dspark train), or serve without speculation with --dspark-draft none"
        )
    flags.default("--speculative-algorithm", "DSPARK")
    if draft is not None:
        flags.default("--speculative-draft-model-path", draft)
    return demo


def _bundles_draft(model: Path) -> bool:
    """A target may carry its draft: in a `dspark` subfolder or in its own files. A hub id is left to the engine."""
    if not model.is_dir():
        return True
    config_file = model / "config.json"
    return (model / "dspark" / "config.json").is_file() or (
        config_file.is_file() and "dspark_block_size" in config_file.read_text()
    )


def _run(argv: list[str], settings: config.DSparkConfig, speculative: bool) -> int:
    import dataclasses

    own_round = speculative and settings.plugin == "on"
    report_dir = tempfile.mkdtemp(prefix="sglang-dspark-") if own_round else None
    settings = dataclasses.replace(settings, report_dir=report_dir)
    settings.to_environment()

    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.utils import kill_process_tree

    if report_dir is not None:
        HookRegistry.register("sglang.srt.entrypoints.engine.Engine._launch_subprocesses", _check_ranks, HookType.AFTER)
    load_plugins()
    if report_dir is not None:
        from sglang.srt.entrypoints.http_server import app

        from sglang_dspark.engine.state import add_route

        add_route(app, Path(report_dir))
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    try:
        run_server(prepare_server_args(argv))
        return 0
    finally:
        if report_dir is not None:
            shutil.rmtree(report_dir, ignore_errors=True)
        kill_process_tree(os.getpid(), include_parent=False)


def _check_ranks(result: Any, *_args: Any, **_kwargs: Any) -> None:
    """Every scheduler process of this node has reported that the plugin is active, or the server stops here.

    The engine only logs a plugin that fails to load, and would then serve with its own worker.
    """
    folder = config.DSparkConfig.from_environment().report_dir
    assert folder is not None
    schedulers = result[3].scheduler_infos
    reports = list(Path(folder).glob("*.json"))
    if len(reports) < len(schedulers):
        message = (
            f"{len(schedulers) - len(reports)} of {len(schedulers)} ranks did not report the sglang_dspark plugin. "
            "Check the log above for 'Failed to load plugin', that the package is installed in this environment "
            "(pip install .), and that SGLANG_PLUGINS does not exclude it."
        )
        print(f"error: {message}", file=sys.stderr, flush=True)
        raise RuntimeError(message)
