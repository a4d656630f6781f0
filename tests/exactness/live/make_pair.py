"""Make the tiny pair of the live tests: a target of 16 tokens and a draft that this project's trainer fits to it.

    python tests/exactness/live/make_pair.py [--out FOLDER]

Deterministic on one machine. The pair in `pair/` was made by it and is committed, so that every run tests the same one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from sglang_dspark.train.data import Row, write_rows
from sglang_dspark.train.generate import decode
from sglang_dspark.train.main import main as train
from sglang_dspark.train.target import Target, import_transformers

# Token 0 fills the draft's block, 1 and 2 begin and end a sequence; the others are one letter each, for grammars.
SPECIAL = ("<mask>", "<s>", "</s>")
LETTERS = "abcdefghijklm"
HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 32, 2, 1, 64, 3
GAMMA = 4
# Wide weights: a random model with opinions, which differ from context to context.
INITIALIZER_RANGE = 0.3
ROWS, ROW_TOKENS, STEPS = 3000, 48, 1500


def make_target(folder: Path) -> None:
    """A random Llama and its tokenizer of single letters."""
    transformers = import_transformers()
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=len(SPECIAL) + len(LETTERS), hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=4096,
        tie_word_embeddings=False, initializer_range=INITIALIZER_RANGE, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer(folder)


def make_tokenizer(folder: Path) -> None:
    import tokenizers

    transformers = import_transformers()
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *LETTERS))}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges=[], unk_token=SPECIAL[0]))
    model.add_special_tokens(list(SPECIAL))
    model.decoder = tokenizers.decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<s>", eos_token="</s>", pad_token="<mask>", unk_token="<mask>"
    )
    fast.save_pretrained(folder)


def make_text(target: Target) -> list[Row]:
    """Answers of the target itself to short random prompts, at the temperature the draft is trained for."""
    generator = torch.Generator().manual_seed(6)
    prompts = [tuple(torch.randint(3, 16, (2 + i % 6,), generator=generator).tolist()) for i in range(ROWS)]
    rows = []
    for start in range(0, ROWS, 250):
        batch = prompts[start : start + 250]
        answers = decode(target, batch, 1.0, ROW_TOKENS, generator)
        rows += [Row("text", f"p{start + i}", 1.0, p, a) for i, (p, a) in enumerate(zip(batch, answers, strict=True))]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pair")
    out = parser.parse_args().out
    make_target(out / "target")
    target = Target(out / "target", torch.float32)
    target.model.generation_config.eos_token_id = None  # text goes on behind an end token, as it does in the tests
    with tempfile.TemporaryDirectory() as work:
        text = Path(work, "text.jsonl")
        write_rows(text, make_text(target))
        arguments = (
            f"run --target {out / 'target'} --dtype float32 --data {text} --out {work}/run --export {out / 'draft'} "
            f"--layers 1 --block-size {GAMMA} --target-layer-ids 0 1 --mask-token-id 0 --markov-rank 8 "
            f"--steps {STEPS} --minutes 0 --rows-per-step 32 --anchors 16 --learning-rate 3e-3 --warmup-steps 50 "
            f"--ema-decay 0.99 --target-top 16 --vocabulary-extra 0 --validate-every 0 --save-every 0"
        )
        raise SystemExit(train(arguments.split()))


if __name__ == "__main__":
    main()
