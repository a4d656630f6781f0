"""What cannot work is refused before the server starts, with a message that names the flag or file."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from sglang_dspark.evaluate.server import ServerProcess
from sglang_dspark.model.demo import demo_draft_path
from sglang_dspark.model.demo_target import ensure_demo_target

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Run `serve` with flags it must refuse; returns its message."""

    def run(*flags: str, **options: Any) -> str:
        server = ServerProcess(flags, name="refused", log_path=tmp_path / "serve.log", **options)
        server.start()
        try:
            status = server.wait_exit(120)
        finally:
            server.stop()
        log = server.log_path.read_text()
        assert status == 1, log
        assert "Traceback" not in log
        messages = [line for line in log.splitlines() if line.startswith("error: ")]
        assert len(messages) == 1, log
        return messages[0]

    return run


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A copy of the demo draft, to be damaged."""
    return Path(shutil.copytree(demo_draft_path(), tmp_path / "draft"))


def edit_config(draft: Path, **fields: Any) -> None:
    path = draft / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_no_draft_was_given(refused: Refused) -> None:
    message = refused("--model-path", str(ensure_demo_target()))
    assert "--dspark-draft" in message


def test_a_draft_path_that_is_not_there(refused: Refused, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    for flag in ("--dspark-draft", "--speculative-draft-model-path"):
        message = refused(flag, missing)
        assert flag in message
        assert missing in message


def test_wrong_vocabulary_size(refused: Refused, draft: Path) -> None:
    edit_config(draft, vocab_size=32000)
    message = refused("--dspark-draft", str(draft))
    assert "vocab" in message
    assert "32000" in message
    assert str(draft) in message


def test_missing_tensors(refused: Refused, draft: Path) -> None:
    (weights,) = draft.glob("*.safetensors")
    tensors = load_file(weights)
    gone = next(name for name in tensors if "markov" in name)
    del tensors[gone]
    save_file(tensors, weights)
    message = refused("--dspark-draft", str(draft))
    assert gone in message
    assert str(draft) in message


def test_half_written_weights(refused: Refused, draft: Path) -> None:
    (weights,) = draft.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert str(draft) in refused("--dspark-draft", str(draft))


def test_gamma_that_does_not_match(refused: Refused) -> None:
    message = refused("--dspark-draft", str(demo_draft_path()), "--speculative-num-draft-tokens", "99")
    assert "--speculative-num-draft-tokens 99" in message
    assert "gamma" in message


def test_verify_length_beyond_gamma(refused: Refused) -> None:
    message = refused("--dspark-draft", str(demo_draft_path()), "--dspark-verify-length", "99")
    assert "--dspark-verify-length 99" in message


def test_port_in_use(refused: Refused) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert f"--port {port}" in refused(port=port)


@pytest.mark.known_case(19)
def test_more_kv_cache_than_memory(refused: Refused) -> None:
    message = refused("--dspark-draft", str(demo_draft_path()), "--max-total-tokens", "1000000000")
    assert "--max-total-tokens 1000000000" in message
    assert "GiB" in message


def test_an_unknown_flag_of_ours(refused: Refused) -> None:
    assert "--dspark-verify-lenght" in refused("--dspark-verify-lenght", "3")


@pytest.mark.parametrize("flags", [("--enable-lora",), ("--lora-paths", "a=b"), ("--enable-return-hidden-states",)])
def test_features_that_speculation_does_not_have(refused: Refused, flags: tuple[str, ...]) -> None:
    message = refused("--dspark-draft", str(demo_draft_path()), *flags)
    assert flags[0] in message
    assert "--dspark-draft none" in message
