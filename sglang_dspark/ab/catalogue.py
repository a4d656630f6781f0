"""The arms one can name: what each is, its flags of `serve`, and what it needs that may not be there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.arms import KNOWN_ARMS, Arm, parse_arm

# Draft kinds that `--draft KIND=PATH` takes.
DRAFT_KINDS = ("mtp", "eagle3", "dflash", "standalone")


@dataclass(frozen=True)
class Entry:
    """One named arm.

    Attributes:
        description: one line for the report.
        flags: of `serve`, without the draft.
        draft: the kind of draft it needs, None for none or the project's own.
    """

    description: str
    flags: tuple[str, ...] = ()
    draft: str | None = None


def _eagle(algorithm: str, steps: int, topk: int = 1, tokens: int | None = None) -> tuple[str, ...]:
    return (
        "--speculative-algorithm", algorithm, "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", str(topk), "--speculative-num-draft-tokens", str(tokens or steps + 1),
    )  # fmt: skip


CATALOGUE = {
    "plain": Entry("no speculation", KNOWN_ARMS["plain"].flags),
    "mtp-1": Entry("one draft token by a multi-token-prediction layer", _eagle("EAGLE", 1), "mtp"),
    "mtp-best": Entry("the same layer, the number of draft tokens searched first", _eagle("EAGLE", 1), "mtp"),
    "eagle3": Entry("EAGLE-3, a chain of three draft tokens", _eagle("EAGLE3", 3), "eagle3"),
    "dflash": Entry("DFlash, a draft without a sequential head", ("--speculative-algorithm", "DFLASH"), "dflash"),
    "standalone": Entry("a small model of its own as draft, a chain of three", _eagle("STANDALONE", 3), "standalone"),
    "tree": Entry("EAGLE-3 with a tree of candidates (top-k 4)", _eagle("EAGLE3", 3, 4, 8), "eagle3"),
    "ngram": Entry("copies what followed the same words before", ("--speculative-algorithm", "NGRAM")),
    "dspark-fixed": Entry("DSpark, every draft token verified", ("--dspark-policy", "fixed")),
    "dspark-stock": Entry("the engine's own DSpark worker", KNOWN_ARMS["dspark-stock"].flags),
    "dspark": Entry("DSpark, verification scheduled by cost and confidence"),
}  # fmt: skip
DEFAULT_ARMS = ("plain", "mtp-1", "ngram", "dspark-fixed", "dspark-stock", "dspark")
SEARCHED_DEPTHS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Chosen:
    """An arm of this experiment.

    Attributes:
        arm: None if it cannot run here.
        not_run: why, None if it can.
        search: arms of which the fastest stands for this one, before it is measured.
    """

    name: str
    description: str
    arm: Arm | None
    not_run: str | None = None
    search: tuple[Arm, ...] = ()


def choose(
    names: Sequence[str],
    *,
    file: Path | None = None,
    drafts: Mapping[str, str] | None = None,
    model_path: str | None = None,
) -> list[Chosen]:
    """The arms of an experiment, in order; those that cannot run carry the reason.

    Args:
        names: of the catalogue, of `KNOWN_ARMS`, of `file`, or `name=flags`. `aa:NAME` adds NAME a second time.
        file: YAML with a user's own arms (`read_arms`).
        drafts: path of the draft by kind.
        model_path: the target, None for the demo's; it may bring an MTP layer.

    Raises:
        ConfigError: an unknown name, the same name twice, or a draft kind that does not exist.
    """
    drafts = dict(drafts or {})
    for kind in drafts:
        if kind not in DRAFT_KINDS:
            raise ConfigError(f"--draft {kind}=...: the kinds are {', '.join(DRAFT_KINDS)}")
    own = read_arms(file) if file is not None else {}
    chosen = [_choose(name, own, drafts, model_path) for name in names or own or DEFAULT_ARMS]
    seen: set[str] = set()
    for one in chosen:
        if one.name in seen:
            raise ConfigError(f"--arms: {one.name!r} is there twice; for the same arm twice write aa:{one.name}")
        seen.add(one.name)
    if not any(one.arm for one in chosen):
        raise ConfigError("--arms: none can run here: " + "; ".join(f"{one.name}: {one.not_run}" for one in chosen))
    return chosen


def _choose(name: str, own: Mapping[str, Chosen], drafts: Mapping[str, str], model_path: str | None) -> Chosen:
    if name.startswith("aa:"):
        base = _choose(name.removeprefix("aa:"), own, drafts, model_path)
        again = f"{base.name}-again"
        arm = None if base.arm is None else replace(base.arm, name=again)
        return replace(base, name=again, description=f"{base.name} once more (A/A)", arm=arm)
    if name in own:
        return own[name]
    if name in CATALOGUE:
        return _from_catalogue(name, drafts, model_path)
    if name in KNOWN_ARMS or "=" in name:
        arm = parse_arm(name)
        return Chosen(arm.name, shlex.join(arm.flags) or arm.name, arm)
    known = ", ".join([*CATALOGUE, *(arm for arm in KNOWN_ARMS if arm not in CATALOGUE), *own])
    raise ConfigError(f"--arms {name}: no such arm; there are {known}; or give name='flags of serve', or --arms-file")


def _from_catalogue(name: str, drafts: Mapping[str, str], model_path: str | None) -> Chosen:
    entry = CATALOGUE[name]
    flags = entry.flags
    if entry.draft is not None:
        known = KNOWN_ARMS.get("mtp-1") if entry.draft == "mtp" and model_path is None else None
        if entry.draft in drafts:
            flags = (*flags, "--speculative-draft-model-path", drafts[entry.draft])
        elif known is not None:  # the module that ships for the demo target
            flags = known.flags
        elif not (entry.draft == "mtp" and _has_mtp(model_path)):
            return Chosen(name, entry.description, None, f"no draft of this kind is here: --draft {entry.draft}=PATH")
    arm = Arm(name, flags)
    search = tuple(_deeper(arm, depth) for depth in SEARCHED_DEPTHS) if name == "mtp-best" else ()
    return Chosen(name, entry.description, arm, search=search)


def _deeper(arm: Arm, depth: int) -> Arm:
    flags = list(arm.flags)
    for flag, value in (("--speculative-num-steps", depth), ("--speculative-num-draft-tokens", depth + 1)):
        if flag in flags:
            flags[flags.index(flag) + 1] = str(value)
        else:
            flags += [flag, str(value)]
    return Arm(f"{arm.name}-depth-{depth}", tuple(flags))


def _has_mtp(model_path: str | None) -> bool:
    """Whether the target's checkpoint brings next-token-prediction layers."""
    config = Path(model_path or "") / "config.json"
    if model_path is None or not config.is_file():
        return False
    settings = json.loads(config.read_text(encoding="utf-8"))
    return bool(settings.get("num_nextn_predict_layers") or settings.get("mtp_num_hidden_layers"))


def read_arms(file: Path) -> dict[str, Chosen]:
    """A user's own arms.

    The file holds `arms:`, a list of mappings with `name` and `flags` (text as in a shell, or a list); optional are
    `like` (an arm whose flags come first), `description`, and `command` (what to run instead of `serve`).

    Raises:
        ConfigError: file, entry and field are named.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--arms-file {file}: {error}") from error
    entries = content.get("arms") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"--arms-file {file}: needs a list under 'arms:'")
    found: dict[str, Chosen] = {}
    for number, entry in enumerate(entries, start=1):
        one = _own(entry, f"--arms-file {file}, arm {number}")
        if one.name in found:
            raise ConfigError(f"--arms-file {file}, arm {number}: the name {one.name!r} was used before")
        found[one.name] = one
    return found


def _own(entry: Any, where: str) -> Chosen:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ConfigError(f"{where}: needs a mapping with a 'name'")
    if unknown := set(entry) - {"name", "flags", "like", "description", "command"}:
        raise ConfigError(f"{where}: unknown field {min(unknown)!r}")
    like = entry.get("like")
    if like is not None and like not in CATALOGUE:
        raise ConfigError(f"{where}, like: {like!r} is none of {', '.join(CATALOGUE)}")
    flags = (*(CATALOGUE[like].flags if like else ()), *_words(entry.get("flags", ""), f"{where}, flags"))
    command = _words(entry["command"], f"{where}, command") if "command" in entry else None
    description = str(entry.get("description") or shlex.join((*(command or ()), *flags)))
    return Chosen(entry["name"], description, Arm(entry["name"], flags, command))


def _words(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(str(word) for word in value)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: must be a text or a list, not {value!r}")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
