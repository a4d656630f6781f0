"""`ab live`: put two fleets behind one address and let the candidate's share grow while it does well."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from sglang_dspark.ab.live.config import Split, read_split
from sglang_dspark.ab.live.controller import Controller, Look
from sglang_dspark.ab.live.proxy import OwnProxy, Proxy, ProxyError, configuration
from sglang_dspark.ab.live.telemetry import read_fleet
from sglang_dspark.evaluate.provenance import now as universal_time

logger = logging.getLogger(__name__)

_LOOK_SECONDS, _LINE_SECONDS = 1.0, 10.0
# Reading metrics may not delay a decision for long.
_METRICS_SECONDS = 2.0
_DESCRIPTION = """Split live traffic between two fleets (docs/production.md).

python -m sglang_dspark ab live --config split.yaml                          # starts HAProxy and watches
python -m sglang_dspark ab live --config split.yaml --attach /run/ha.sock    # HAProxy runs elsewhere
python -m sglang_dspark ab live --config split.yaml --write-proxy ha.cfg --socket /run/ha.sock
"""


def main(argv: list[str]) -> int:
    """Run until stopped. After a roll-back the control fleet serves everybody; 3 is the exit status then."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dspark ab live",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, required=True, help="the split (YAML)")
    add("--attach", type=Path, metavar="SOCKET", help="control socket of an HAProxy that is already running")
    add("--write-proxy", type=Path, metavar="FILE", help="only write HAProxy's configuration")
    add("--socket", type=Path, default=Path("/run/haproxy/admin.sock"), help="control socket that it names")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    split = read_split(options.config)
    if options.write_proxy is not None:
        options.write_proxy.write_text(configuration(split, options.socket), encoding="utf-8")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _proxy(split, options.attach) as proxy:
        return watch(split, proxy)


@contextlib.contextmanager
def _proxy(split: Split, attach: Path | None) -> Iterator[Proxy]:
    if attach is not None:
        yield Proxy(attach)
        return
    with tempfile.TemporaryDirectory(prefix="ab-live-") as folder, OwnProxy(split, Path(folder)) as proxy:
        yield proxy


def watch(split: Split, proxy: Proxy, *, seconds: float = float("inf")) -> int:
    """Look and act once a second; 0 when stopped, 3 when stopped after a roll-back.

    Args:
        split, proxy: what and by what.
        seconds: to watch for.
    """
    controller = Controller(split, proxy.set_percent, lambda record: write_audit(split, record))
    write_audit(split, {"why": "started", "from_percent": proxy.percent(), "to_percent": 0.0})
    proxy.set_percent(0.0)
    end, next_line = time.monotonic() + seconds, 0.0
    with httpx.Client(timeout=_METRICS_SECONDS, trust_env=False) as client, contextlib.suppress(KeyboardInterrupt):
        while (started := time.monotonic()) < end:
            try:
                controller.look(take(split, proxy, client))
            except ProxyError as error:
                # Nothing can be changed without HAProxy, and where it is gone nobody is served by it.
                logger.error("%s", error)
            if started >= next_line:
                next_line = started + _LINE_SECONDS
                logger.info("%5.2f %% %s", controller.percent, json.dumps(controller.figures()))
            time.sleep(max(0.0, started + _LOOK_SECONDS - time.monotonic()))
    write_audit(split, {"why": "stopped", "to_percent": controller.percent, "figures": controller.figures()})
    return 3 if controller.rolled_back is not None else 0


def take(split: Split, proxy: Proxy, client: httpx.Client) -> Look:
    """A look at both fleets."""
    counters = proxy.counters()
    readings = {"control": read_fleet(split.control, client), "candidate": read_fleet(split.candidate, client)}
    return Look(time.monotonic(), counters, readings)


def write_audit(split: Split, record: dict[str, Any]) -> None:
    """Append a decision, with the time of day, and say it."""
    line = {
        "at": universal_time(), "control": split.control.name, "candidate": split.candidate.name, **record,
    }  # fmt: skip
    split.audit.parent.mkdir(parents=True, exist_ok=True)
    with split.audit.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    logger.warning("%s: %s %% to %s (%s)", line["at"], line.get("to_percent"), split.candidate.name, line["why"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
