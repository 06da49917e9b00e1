"""One process: how many requests an engine holds at its memory fraction.

Usage: python -m replayssm_sglang.bench.capacity PLAN, a JSON object {"engine", "prompt", "steps"}. Without a prefix cache
SGLang takes the number from its operator; two small engines tell what a request costs, and a third proves what follows.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from replayssm_sglang.bench.protocol import READY, ROW, say, wait_for_go
from replayssm_sglang.bench.throughput import free_port, seconds
from replayssm_sglang.calls import Foreign

PROBES = (16, 64)
ANSWER = 8
"""Tokens that the last engine answers each of its requests with."""


def main(plan: dict[str, Any]) -> None:
    """Wait, probe, prove."""
    say(READY)
    wait_for_go()
    length = plan["prompt"] + plan["steps"]
    fitting = most({requests: probe(plan["engine"], requests) for requests in PROBES}, length)
    engine = start(plan["engine"], fitting)
    try:
        running, tokens = sizes(engine)
        held, begun = min(running, tokens // length), time.monotonic()
        seconds(engine, held, plan["prompt"], ANSWER)
        say(ROW, requests=held, tokens=tokens, seconds=round(time.monotonic() - begun, 1))
    finally:
        engine.shutdown()


def most(tokens: dict[int, int], length: int) -> int:
    """The largest number of requests, each of `length` tokens, whose states leave room for their keys and values.

    Args:
        tokens: two numbers of requests, and how many tokens each of them leaves room for.
        length: tokens of a request.
    """
    (few, room), (more, less) = sorted(tokens.items())
    price = (room - less) / (more - few)
    return int((room + few * price) / (length + price))


def probe(engine: dict[str, Any], requests: int) -> int:
    """Tokens that an engine of so many requests has room for."""
    running = start(engine, requests)
    try:
        return sizes(running)[1]
    finally:
        running.shutdown()


def start(engine: dict[str, Any], requests: int) -> Foreign:
    """An engine of at most so many requests."""
    import sglang

    return sglang.Engine(**engine, max_running_requests=requests, port=free_port())


def sizes(engine: Foreign) -> tuple[int, int]:
    """Requests that run at once, and tokens of all of them."""
    state = engine.get_server_info()["internal_states"][0]
    return state["effective_max_running_requests_per_dp"], state["memory_usage"]["token_capacity"]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
