"""Names SGLang imports on a CPU whose features this package does not serve there."""

from typing import Any, NoReturn


def _refuse(feature: str, instead: str) -> NoReturn:
    raise RuntimeError(
        f"{feature} needs a CPU build of sgl_kernel, which is not installed; sglang_dspark's stand-in does not "
        f"cover it. {instead}"
    )


def rotate_input_ids_cpu(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises RuntimeError: used by multi-layer EAGLE (`--enable-multi-layer-eagle`) only."""
    _refuse("Multi-layer EAGLE", "Leave out --enable-multi-layer-eagle.")


def build_draft_decode_metadata_cpu(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises RuntimeError: used by `--attention-backend intel_amx` only."""
    _refuse("The intel_amx attention backend", "Use --attention-backend torch_native.")
