"""What a measurement was made on, so that it is used on nothing else; and the measurements that fit a server."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sglang_dspark import __version__
from sglang_dspark.errors import ConfigError

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
_END_BYTES = 1 << 20


@dataclass(frozen=True)
class Identity:
    """Everything that the time of a round, or the meaning of a confidence, depends on.

    Attributes:
        target, draft: `content_hash` of the checkpoints.
        device: processor and cores, or the name of the GPU.
        dtype, tp, dp, page_size, attention_backend: as the engine resolved them.
        gamma: draft tokens a request.
        engine, package: versions.
        support: candidates the draft chooses from, 0 for the whole vocabulary.
    """

    target: str
    draft: str
    device: str
    dtype: str
    tp: int
    dp: int
    gamma: int
    page_size: int
    attention_backend: str
    engine: str
    package: str
    support: int

    @classmethod
    def of(
        cls,
        model_path: str | Path,
        draft_path: str | Path,
        *,
        dtype: str,
        gamma: int,
        page_size: int,
        attention_backend: str,
        tp: int = 1,
        dp: int = 1,
        support: int = 0,
        device: str | None = None,
        engine: str | None = None,
    ) -> Self:
        """The identity of a server.

        Args:
            model_path, draft_path: folders, or hub names, which stand for themselves.
            device: `device_name()` by default.
            engine: the installed version by default.
        """
        if engine is None:
            from sglang_dspark.contract import engine_version

            engine = engine_version() or "none"
        return cls(
            target=content_hash(model_path),
            draft=content_hash(draft_path),
            device=device if device is not None else device_name(),
            dtype=str(dtype).removeprefix("torch."),
            tp=tp,
            dp=dp,
            gamma=gamma,
            page_size=page_size,
            attention_backend=attention_backend,
            engine=engine,
            package=__version__,
            support=support,
        )

    @classmethod
    def of_server(cls, arguments: Mapping[str, Any], *, gamma: int, support: int = 0) -> Self:
        """The identity of a server from the engine's resolved arguments, its own or those that `/server_info` shows.

        A target that carries its draft has no draft path; it then stands for both.
        """
        draft = arguments.get("speculative_draft_model_path") or arguments["model_path"]
        return cls.of(
            arguments["model_path"],
            draft,
            dtype=arguments["dtype"],
            gamma=gamma,
            page_size=int(arguments.get("page_size") or 1),
            attention_backend=str(arguments.get("attention_backend")),
            tp=int(arguments.get("tp_size") or 1),
            dp=int(arguments.get("dp_size") or 1),
            support=support,
            device=device_name("cpu") if arguments.get("device") == "cpu" else None,
        )

    def differences(self, other: Identity) -> list[str]:
        """One clause for each field that differs: `gamma: 5 here, 7 there`, this identity being here."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))
        return [f"{name}: {mine} here, {theirs} there" for name, mine, theirs in pairs if mine != theirs]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "identity") -> Self:
        """Read what `as_dict` wrote.

        Raises:
            ConfigError: a field is missing, unknown or of another type.
        """
        kinds = {f.name: {"int": int, "str": str}[str(f.type)] for f in dataclasses.fields(cls)}
        if not isinstance(data, Mapping) or set(data) != set(kinds):
            found = sorted(data) if isinstance(data, Mapping) else type(data).__name__
            raise ConfigError(f"{where}: expected the fields {', '.join(kinds)}; found {found}")
        for name, kind in kinds.items():
            if type(data[name]) is not kind:
                raise ConfigError(f"{where}.{name}: expected {kind.__name__}, got {data[name]!r}")
        return cls(**data)


def content_hash(path: str | Path) -> str:
    """16 hex digits over config.json and, per weight file, name, size, first and last MiB.

    Milliseconds for a checkpoint of any size. A name that is no folder (of a hub) is hashed as text.
    """
    digest = hashlib.sha256()
    folder = Path(path)
    if not folder.is_dir():
        digest.update(str(path).encode())
        return digest.hexdigest()[:16]
    config = folder / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
    for file in sorted({found for pattern in _WEIGHTS for found in folder.glob(pattern)}):
        size = file.stat().st_size
        digest.update(f"\0{file.name}\0{size}\0".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(_END_BYTES))
            if size > _END_BYTES:
                weights.seek(max(size - _END_BYTES, _END_BYTES))
                digest.update(weights.read())
    return digest.hexdigest()[:16]


def device_name(device: str = "auto") -> str:
    """The GPU's name, or the processor with the cores this process may use.

    Args:
        device: `cpu`, `cuda`, or `auto`: the GPU where torch sees one.
    """
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            return str(torch.cuda.get_device_name())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} cores"


def processor() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
