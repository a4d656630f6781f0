from __future__ import annotations

import pytest
from evaluation_fakes import FakeEngine

from sglang_dspark.evaluate.endpoints import EndpointError, flush_cache, load, metrics, server_info, wait_idle


def test_flush_asks_again(engine: FakeEngine) -> None:
    engine.flush_refusals = 2
    flush_cache(engine.base_url, seconds=5)
    assert engine.flush_refusals == 0
    engine.flush_refusals = 1000
    with pytest.raises(EndpointError, match="refused"):
        flush_cache(engine.base_url, seconds=0.3)


def test_idle_means_that_no_slot_is_held(engine: FakeEngine) -> None:
    assert wait_idle(engine.base_url, seconds=1) == load(engine.base_url)
    engine.used_tokens = 3
    with pytest.raises(EndpointError, match="used_tokens=3"):
        wait_idle(engine.base_url, seconds=0.3)


def test_metrics_and_info(engine: FakeEngine) -> None:
    assert metrics(engine.base_url)["sglang:spec_accept_length"] == 2.5
    assert server_info(engine.base_url)["speculative_algorithm"] == "DSPARK"


def test_a_missing_endpoint_is_named(engine: FakeEngine) -> None:
    with pytest.raises(EndpointError, match="/server_info answered 404"):
        server_info(engine.base_url + "/nowhere")
