"""One process: milliseconds of a decode step of one engine at several batches, through SGLang's own model runner.

Usage: python -m replayssm_sglang.bench.step PLAN, a JSON object {"engine": ServerArgs, "batches", "prompt", "steps"}.
It says when it is ready, waits for a line on its input, so that nothing else runs meanwhile, and prints a line a batch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from replayssm_sglang.bench.protocol import READY, ROW, say, wait_for_go
from replayssm_sglang.calls import Foreign

WARM_STEPS = 16
PREFILL_TOKENS = 8192
"""Of prompts in one pass, as SGLang's scheduler does by default: 512 prompts of 256 tokens times 17,504 projections of a
Nemotron-3-Nano-4B layer pass the 32-bit offsets of its convolution."""


def main(plan: dict[str, Any]) -> None:
    """Start, wait, measure."""
    import sglang.benchmark.one_batch as one_batch
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import PortArgs, ServerArgs

    begun = time.monotonic()
    load_plugins()
    args = ServerArgs(**plan["engine"])
    getattr(args, "resolve_once", lambda: None)()
    one_batch._set_envs_and_config(args)
    load = one_batch.load_model

    def load_and_measure(*arguments: Foreign) -> NoReturn:
        take_part(args)
        runner, _ = load(*arguments)
        measure(runner, plan, begun)
        # SGLang's own measurement would follow.
        sys.exit()

    one_batch.load_model = load_and_measure
    one_batch.get_tokenizer = one_batch.suppress_other_loggers = lambda *_args, **_options: None
    one_batch.latency_test(args, PortArgs.init_new(args), one_batch.BenchArgs(), 0, 0)


def measure(runner: Foreign, plan: dict[str, Any], begun: float) -> None:
    """Warm up, wait for the word, measure every batch, the largest last: where it fails, the others are known."""
    batches = sorted(plan["batches"])
    for batch in batches[:2]:
        list(steps(runner, batch, plan["prompt"], 2))
    say(READY, seconds=round(time.monotonic() - begun, 1))
    wait_for_go()
    for batch in batches:
        times = list(steps(runner, batch, plan["prompt"], WARM_STEPS + plan["steps"]))[WARM_STEPS:]
        # The mean: flushes come together here, and a median would not see them.
        say(ROW, batch=batch, us=1e6 * sum(times) / len(times), times_ms=[round(1e3 * t, 3) for t in times])


def take_part(args: Foreign) -> None:
    """What a scheduler process does before it loads its model, our plugin included; this benchmark has none."""
    from sglang.kernels.ops.mamba.triton_ops import ssu_dispatch

    from replayssm_sglang import arguments, install, launch

    ssu_dispatch.initialize_mamba_selective_state_update_backend(args)
    config = launch.active_config()
    if config is not None:
        arguments.check(args)
        install.install(config, args)


def steps(runner: Foreign, batch: int, prompt: int, count: int) -> Iterator[float]:
    """Seconds of each of `count` decode steps of `batch` requests after a prompt of so many tokens."""
    import sglang.benchmark.one_batch as one_batch

    requests = one_batch.prepare_synthetic_inputs_for_latency_test(batch, prompt)
    for request in requests:
        for i, token in enumerate(request.origin_input_ids):
            request.origin_input_ids[i] = 3 + token % 250
    runner.clear()
    tokens, state = prefill(runner, requests, max(1, PREFILL_TOKENS // prompt))
    for _ in range(count):
        runner.synchronize()
        begun = time.perf_counter()
        tokens, _ = runner.decode(tokens, state)
        runner.synchronize()
        yield time.perf_counter() - begun


def prefill(runner: Foreign, requests: list[Foreign], most: int) -> tuple[torch.Tensor, Foreign]:
    """The first token of each request, (B,), and all of them as one batch; at most `most` prompts in one pass."""
    passes = [runner.extend(requests[first : first + most]) for first in range(0, len(requests), most)]
    together = passes[0][2]
    for _, _, others in passes[1:]:
        together.merge_batch(others)
    return torch.cat([tokens for tokens, _, _ in passes]), together


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
