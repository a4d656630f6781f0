"""The prompts a measurement runs on: those the package ships, or any JSONL file with the same fields."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from sglang_dspark.errors import DSparkError

FIELDS = ("id", "domain", "prompt")
_OPAQUE = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


class PromptError(DSparkError, ValueError):
    """A prompt file that cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class Prompt:
    """One first user turn.

    Attributes:
        id: unique within its file.
        domain: what accept lengths are reported by, such as math, code or chat.
        prompt: the text, without any chat template.
    """

    id: str
    domain: str
    prompt: str


def load_prompts(
    path: str | Path | None = None,
    domains: Iterable[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
) -> list[Prompt]:
    """Read prompts, keep some domains, shuffle, and cut to `limit` with the domains balanced.

    Args:
        path: JSONL with the fields id, domain and prompt on every line; further fields are ignored. None: the
            package's own 96 prompts (32 each of math, code and chat).
        domains: the domains to keep, all by default.
        limit: at most this many, taken from the domains in turn.
        seed: shuffle within each domain; None keeps the file's order.

    Raises:
        PromptError: the file, a line of it, or a domain asked for is not there or not usable.
    """
    source = _shipped() if path is None else Path(path)
    prompts = _read(source)
    found = list(dict.fromkeys(prompt.domain for prompt in prompts))
    wanted = found if domains is None else list(dict.fromkeys(domains))
    for domain in wanted:
        if domain not in found:
            raise PromptError(f"{source}: no prompt of domain {domain!r}; it has {', '.join(found)}")
    groups = [[prompt for prompt in prompts if prompt.domain == domain] for domain in wanted]
    if seed is not None:
        for group in groups:
            random.Random(seed).shuffle(group)
    balanced = _in_turn(groups)
    return balanced if limit is None else balanced[:limit]


def echo_prompts(count: int, seed: int = 0) -> list[Prompt]:
    """Requests to repeat identifiers without meaning: a wrong token cannot hide behind a plausible word."""
    draw = random.Random(seed)
    prompts = []
    for i in range(count):
        identifiers = ["-".join("".join(draw.choices(_OPAQUE, k=4)) for _ in range(3)) for _ in range(3)]
        text = f"Repeat these identifiers exactly and write nothing else: {', '.join(identifiers)}"
        prompts.append(Prompt(f"echo-{i:03}", "echo", text))
    return prompts


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a model folder or hub id, with its chat template."""
    from sglang_dspark.engine.cpu import bootstrap

    bootstrap.install()  # beside a CPU torch, transformers imports a torchvision that does not load by itself
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def apply_chat(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of `prompt` as a user's first turn, the assistant's header included.

    Args:
        tokenizer: the target's, from `load_tokenizer`.

    Raises:
        PromptError: the tokenizer has no chat template.
    """
    return apply_chat_turns(tokenizer, [{"role": "user", "content": prompt}])


def apply_chat_turns(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a conversation so far, the header of the assistant's next turn included.

    Args:
        tokenizer: the target's, from `load_tokenizer`.
        messages: each with `role` and `content`.

    Raises:
        PromptError: the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(f"{getattr(tokenizer, 'name_or_path', 'the tokenizer')} has no chat template")
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    # The template has written the special tokens already.
    return list(tokenizer.encode(text, add_special_tokens=False))


def _shipped() -> Traversable:
    return resources.files("sglang_dspark") / "data" / "prompts.jsonl"


def _read(source: Traversable | Path) -> list[Prompt]:
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"{source}: {error.strerror}; give a JSONL file with {', '.join(FIELDS)}") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"{source}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    prompts: dict[str, Prompt] = {}
    # Not splitlines(): a prompt may hold characters that it takes for line ends.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        prompt = _parse(line, f"{source}, line {number}")
        if prompt.id in prompts:
            raise PromptError(f"{source}, line {number}: id {prompt.id!r} was used before")
        prompts[prompt.id] = prompt
    if not prompts:
        raise PromptError(f"{source}: holds no prompt")
    return list(prompts.values())


def _parse(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(record, dict):
        raise PromptError(f"{where}: must be an object with {', '.join(FIELDS)}")
    for field in FIELDS:
        value = record.get(field)
        if not isinstance(value, str) or not value.strip():
            raise PromptError(f"{where}: field {field!r} must be a non-empty text, not {value!r}")
    return Prompt(*(record[field] for field in FIELDS))


def _in_turn(groups: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    """One of each group, again and again, until all are used."""
    longest = max(map(len, groups), default=0)
    return [group[i] for i in range(longest) for group in groups if i < len(group)]
