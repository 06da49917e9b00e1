"""One process: time of an output token of one engine with drafts, a fixed number of which is accepted.

Usage: python -m replayssm_sglang.bench.throughput PLAN, a JSON object {"engine", "batches", "prompt", "steps"};
SGLANG_SIMULATE_ACC_LEN in the environment says how many tokens a verify step yields.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from statistics import median
from typing import Any

from replayssm_sglang.bench.protocol import READY, ROW, say, wait_for_go
from replayssm_sglang.calls import Foreign

SHORT = 16
"""Tokens of a run that is taken off the long one, with its prefill."""
TIMES = 3
"""Measurements of a batch."""


def main(plan: dict[str, Any]) -> None:
    """Start, wait, measure."""
    import sglang

    begun = time.monotonic()
    engine = sglang.Engine(**plan["engine"], port=free_port())
    try:
        batches = sorted(plan["batches"])
        seconds(engine, batches[0], plan["prompt"], SHORT)
        say(READY, seconds=round(time.monotonic() - begun, 1))
        wait_for_go()
        for batch in batches:
            say(ROW, batch=batch, **output_token(engine, batch, plan["prompt"], plan["steps"]))
    finally:
        engine.shutdown()


def free_port() -> int:
    """One that no other process has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def output_token(engine: Foreign, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
    """Microseconds of an output token of each of `batch` requests, and tokens a second of all of them.

    NGRAM drafts on the host, so another process there shows: each time is taken, and the median is what counts.
    """
    seconds(engine, batch, prompt, SHORT)
    times, drafts = [], 1.0
    for _ in range(TIMES):
        short, _ = seconds(engine, batch, prompt, SHORT)
        long, drafts = seconds(engine, batch, prompt, SHORT + tokens)
        times.append(1e6 * (long - short) / tokens)
    us = median(times)
    return {
        "us": us,
        "times_us": [round(time, 1) for time in times],
        "tokens_per_second": round(1e6 * batch / us, 1),
        "accept_length": drafts,
    }


def seconds(engine: Foreign, batch: int, prompt: int, tokens: int) -> tuple[float, float]:
    """Of a batch of requests from its first prompt to its last token, and the tokens that a verify step yielded."""
    prompts = [[3 + (7 * i + 13 * j) % 250 for i in range(prompt)] for j in range(batch)]
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    begun = time.perf_counter()
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    took = time.perf_counter() - begun
    steps = answers[0]["meta_info"].get("spec_verify_ct")
    return took, round(tokens / steps, 2) if steps else 1.0


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
