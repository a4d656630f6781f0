"""Dequantise a Llama GGUF file into a Hugging Face folder (fp32 weights, tokenizer, chat template)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def huggingface_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`.

    Raises:
        ValueError: a tensor a Llama model does not have.
    """
    stem = gguf_name.removesuffix(".weight")
    if stem in _TOP_NAMES:
        return _TOP_NAMES[stem] + ".weight"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    raise ValueError(f"GGUF tensor {gguf_name!r} belongs to no Llama layer; only plain Llama files can be converted")


def unpermute_rope(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of q and k (interleaved rotary pairs) back to rotate-half. `weight` [heads*D, H]."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def convert(gguf_file: Path, folder: Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Write `config.json`, `generation_config.json`, `model.safetensors` (fp32) and the tokenizer files to `folder`.

    `on_progress(done, total)` is called after every tensor.

    Raises:
        ValueError: the file is no Llama model, or holds tensors or quantisations that are not known.
    """
    import gguf
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(str(gguf_file))
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama":
        raise ValueError(f"{gguf_file}: architecture {meta.get('general.architecture')!r}, expected 'llama'")
    heads = {"attn_q": int(meta["llama.attention.head_count"]), "attn_k": int(meta["llama.attention.head_count_kv"])}
    tensors: dict[str, np.ndarray] = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            array = unpermute_rope(array, heads[kind])
        tensors[huggingface_name(tensor.name)] = np.ascontiguousarray(array)
        on_progress(done, len(reader.tensors))
    config = _config(meta, tied="lm_head.weight" not in tensors)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    stops = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    _write_json(folder / "generation_config.json", {**stops, "pad_token_id": config["pad_token_id"]})
    _write_tokenizer(meta, folder)


def _config(meta: dict[str, Any], tied: bool) -> dict[str, Any]:
    hidden, heads = int(meta["llama.embedding_length"]), int(meta["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(meta["llama.vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(meta["llama.feed_forward_length"]),
        "num_hidden_layers": int(meta["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(meta["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(meta["llama.context_length"]),
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(meta["tokenizer.ggml.padding_token_id"]),
        "torch_dtype": "float32",
    }


def _write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if meta["tokenizer.ggml.model"] != "gpt2" or meta.get("tokenizer.ggml.pre") != "smollm":
        raise ValueError("only GGUF files with the byte-level BPE tokenizer of SmolLM can be converted")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    # SmolLM splits numbers into single digits before the byte-level rule.
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    controls = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    special = [AddedToken(token, special=True, normalized=False) for token in controls]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {role: tokens[int(meta[f"tokenizer.ggml.{key}_token_id"])] for role, key in _ROLES.items()}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(meta["llama.context_length"]),
            "chat_template": meta["tokenizer.chat_template"],
            **named,
        },
    )
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


_ROLES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
