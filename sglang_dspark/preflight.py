"""What can be known to fail before the server starts: checked here, so that the message names the flag."""

from __future__ import annotations

import errno
import json
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_dspark.config import DSparkConfig
from sglang_dspark.errors import ConfigError

if TYPE_CHECKING:
    from sglang_dspark.model.draft_check import DraftReading
    from sglang_dspark.serve import EngineFlags

_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


def preflight(flags: EngineFlags, settings: DSparkConfig, on_cpu: bool) -> DraftReading | None:
    """Check everything; the draft as read, None when there is none or the engine resolves it from a hub.

    Raises:
        ConfigError, CheckpointError: a port in use, a draft that does not fit, too little memory; the flag is named.
    """
    _check_port(flags)
    target = _target_config(flags)
    reading = None
    draft_path = flags.get("--speculative-draft-model-path")
    if flags.get("--speculative-algorithm") == "DSPARK":
        _check_features(flags)
        if draft_path is not None:
            reading = _check_draft(flags, Path(draft_path), target, settings)
    if target is not None:
        _check_memory(flags, target, reading, on_cpu)
    return reading


def _target_config(flags: EngineFlags) -> dict[str, Any] | None:
    """The target's config.json; None for a hub id, which the engine resolves itself."""
    path = Path(flags.get("--model-path") or flags.get("--model") or "")
    if not path.is_dir():
        if path.is_absolute() or str(path).startswith("."):
            raise ConfigError(f"--model-path {path}: no such folder")
        return None
    config_file = path / "config.json"
    if not config_file.is_file():
        raise ConfigError(f"--model-path {path}: it holds no config.json")
    try:
        config: dict[str, Any] = json.loads(config_file.read_text())
    except ValueError as error:
        raise ConfigError(f"{config_file}: not valid JSON: {error}") from error
    return {**config, **config.get("text_config", {})}


def _check_port(flags: EngineFlags) -> None:
    host, port = flags.get("--host") or "127.0.0.1", flags.get("--port") or "30000"
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--port {port}: must be a number from 1 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"--port {port}: already in use on {host}; choose another --port") from error
            raise ConfigError(f"--host {host} --port {port}: cannot be used: {error.strerror}") from error


# What requests could ask for with these flags, and would not get from a speculating server.
_LORA = "a LoRA adapter changes the target under a draft that was not trained for it"
_HIDDEN_STATES = "the target's hidden states are taken for the draft and not returned"
_REFUSED = {
    "--enable-lora": _LORA,
    "--lora-paths": _LORA,
    "--enable-return-hidden-states": _HIDDEN_STATES,
    "--return-hidden-states-mode": _HIDDEN_STATES,
}


def _check_features(flags: EngineFlags) -> None:
    for flag, reason in _REFUSED.items():
        if flags.has(flag):
            raise ConfigError(f"{flag} does not go with DSpark: {reason}; leave it out, or use --dspark-draft none")


def _check_draft(
    flags: EngineFlags, path: Path, target: dict[str, Any] | None, settings: DSparkConfig
) -> DraftReading | None:
    from sglang_dspark.model.draft_check import check_draft

    if not path.is_dir() and not path.is_absolute() and target is None:
        return None  # A hub id beside a hub id: the engine resolves both.
    if not path.is_dir():
        raise ConfigError(f"--speculative-draft-model-path {path} (or --dspark-draft): no such folder")
    reading = check_draft(path, target or {})
    gamma = reading.config.gamma
    if reading.config.markov_rank == 0:
        raise ConfigError(
            f"--speculative-draft-model-path {path}: a DFlash draft (markov_rank 0) has no sequential head; serve it "
            "with --speculative-algorithm DFLASH"
        )
    if reading.config.draft_vocab_size and settings.plugin == "off":
        raise ConfigError(
            f"--speculative-draft-model-path {path}: the stock engine cannot read its reduced vocabulary of "
            f"{reading.config.draft_vocab_size} tokens; leave out --dspark-plugin off"
        )
    for name, expected in (("--speculative-num-draft-tokens", gamma + 1), ("--speculative-dspark-block-size", gamma)):
        value = flags.get(name)
        if value is not None and value != str(expected):
            raise ConfigError(f"{name} {value}: the draft at {path} has gamma={gamma}; use {expected} or leave it out")
    settings.check_gamma(gamma)
    last = int((target or {}).get("num_hidden_layers", 0)) - 1
    if "LlamaForCausalLM" in (target or {}).get("architectures", []) and last in reading.config.target_layer_ids:
        raise ConfigError(
            f"{path}/config.json, target_layer_ids: the engine's Llama cannot hand out the output of its last layer "
            f"({last}); use a draft that reads earlier layers"
        )
    return reading


def _check_memory(flags: EngineFlags, target: dict[str, Any], draft: DraftReading | None, on_cpu: bool) -> None:
    """The KV pool asked for by --max-total-tokens must fit, the draft's share included."""
    tokens = flags.get("--max-total-tokens")
    if tokens is None:
        return
    if not tokens.isdigit() or int(tokens) < 1:
        raise ConfigError(f"--max-total-tokens {tokens}: must be a positive number")
    dtype = flags.get("--dtype") or "auto"
    if dtype == "auto":
        dtype = str(target.get("dtype") or target.get("torch_dtype") or "bfloat16")
    values = _kv_values_per_token(target) + (_kv_values_per_token(asdict(draft.config)) if draft else 0)
    per_token = values * _DTYPE_BYTES.get(dtype, 2)
    tensor_parallel = int(flags.get("--tp-size") or flags.get("--tp") or 1)
    needed = int(tokens) * per_token / tensor_parallel
    available = _available_bytes(on_cpu)
    if needed > available:
        fitting = int(available * tensor_parallel / max(per_token, 1))
        raise ConfigError(
            f"--max-total-tokens {tokens}: its KV cache needs {needed / 2**30:.1f} GiB, target and draft together, and "
            f"{available / 2**30:.1f} GiB are available; use at most about {fitting}"
        )


def _kv_values_per_token(model: dict[str, Any]) -> int:
    heads = int(model.get("num_attention_heads") or 0)
    kv_heads = int(model.get("num_key_value_heads") or heads)
    head_dim = int(model.get("head_dim") or (int(model.get("hidden_size") or 0) // max(heads, 1)))
    return 2 * int(model.get("num_hidden_layers") or 0) * kv_heads * head_dim


def _available_bytes(on_cpu: bool) -> float:
    if on_cpu:
        import psutil

        return float(psutil.virtual_memory().available)
    import torch

    return float(torch.cuda.mem_get_info()[0])
