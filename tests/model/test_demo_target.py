"""The demo target's cache, with a tiny GGUF file in place of the download."""

from __future__ import annotations

import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from sglang_dspark.model import demo_target, gguf_convert
from sglang_dspark.model.demo_target import DemoTargetError, check_folder, ensure_demo_target

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 16, 4, 2, 32, 2


def write_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """A tiny Llama file; returns the weights in Hugging Face's layout."""
    rng = np.random.default_rng(0)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "ab", "1", "2"]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    for role, token in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{role}_token_id")(token)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_output": (HIDDEN, HIDDEN)}
    shapes |= {"attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN)}
    shapes |= {"ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER)}
    tensors = {"token_embd.weight": rng.normal(size=(len(tokens), HIDDEN)), "output_norm.weight": np.ones(HIDDEN)}
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{n}.weight": rng.normal(size=s) for n, s in shapes.items()}
        tensors |= {f"blk.{layer}.{n}.weight": np.ones(HIDDEN) for n in ("attn_norm", "ffn_norm")}
    expected = {}
    for name, array in tensors.items():
        array = array.astype(np.float32)
        expected[gguf_convert.huggingface_name(name)] = array
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        if heads:  # as llama.cpp's converter permutes
            rows = array.shape[0]
            array = array.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the download; the list grows by one for each."""
    calls: list[Path] = []

    def fetch(folder: Path, progress: bool = True) -> Path:
        folder.mkdir(parents=True)
        calls.append(folder)
        write_gguf(folder / "model.gguf")
        return folder / "model.gguf"

    monkeypatch.setattr(demo_target, "fetch_gguf", fetch)
    return calls


def test_conversion_restores_weights(tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "model.gguf")
    out = tmp_path / "out"
    out.mkdir()
    gguf_convert.convert(tmp_path / "model.gguf", out)
    found = load_file(str(out / "model.safetensors"))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_conversion_refuses_other_models(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", architecture="qwen2")
    with pytest.raises(ValueError, match="architecture"):
        gguf_convert.convert(tmp_path / "model.gguf", tmp_path)
    with pytest.raises(ValueError, match="belongs to no Llama layer"):
        gguf_convert.huggingface_name("blk.0.ssm_in.weight")


def test_built_once_and_reused(tmp_path: Path, fetches: list[Path]) -> None:
    folder = ensure_demo_target(tmp_path, progress=False)
    assert (folder / "config.json").is_file()
    assert ensure_demo_target(tmp_path, progress=False) == folder
    assert len(fetches) == 1
    left = {path.name for path in tmp_path.iterdir()} - {folder.name, folder.name + ".lock"}
    assert not left, "temporary folders stay behind"


@pytest.mark.parametrize("damage", ["truncate", "edit", "remove", "manifest", "flip"])
def test_damage_is_found_and_rebuilt(
    tmp_path: Path, fetches: list[Path], damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ensure_demo_target(tmp_path, progress=False)
    weights, config = folder / "model.safetensors", folder / "config.json"
    good = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(good[:-10])
    elif damage == "edit":
        config.write_text(config.read_text().replace("silu", "gelu"))
    elif damage == "remove":
        (folder / "tokenizer.json").unlink()
    elif damage == "manifest":
        (folder / demo_target.MANIFEST).write_text("{")
    else:
        weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert check_folder(folder) is not None
    capsys.readouterr()
    ensure_demo_target(tmp_path, progress=False)
    assert "building it" in capsys.readouterr().err
    assert len(fetches) == 2
    assert check_folder(folder) is None
    assert weights.read_bytes() == good


def test_touched_weights_are_hashed_not_rebuilt(tmp_path: Path, fetches: list[Path]) -> None:
    folder = ensure_demo_target(tmp_path, progress=False)
    (folder / "model.safetensors").touch()
    ensure_demo_target(tmp_path, progress=False)
    assert len(fetches) == 1


def test_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, progress: bool = True) -> Path:
        raise DemoTargetError("no network")

    monkeypatch.setattr(demo_target, "fetch_gguf", fail)
    with pytest.raises(DemoTargetError, match="no network"):
        ensure_demo_target(tmp_path, progress=False)
    assert not (tmp_path / demo_target.FOLDER_NAME).exists()


def test_concurrent_callers_build_once(tmp_path: Path, fetches: list[Path]) -> None:
    threads = [threading.Thread(target=ensure_demo_target, args=(tmp_path, False)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetches) == 1
    assert check_folder(tmp_path / demo_target.FOLDER_NAME) is None


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo_target.default_cache_dir() == tmp_path / "sglang_dspark"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert demo_target.default_cache_dir() == Path.home() / ".cache" / "sglang_dspark"


def test_the_real_target_if_cached() -> None:
    folder = demo_target.default_cache_dir() / demo_target.FOLDER_NAME
    if not folder.exists():
        pytest.skip("the demo target has not been fetched on this machine")
    assert check_folder(folder) is None
