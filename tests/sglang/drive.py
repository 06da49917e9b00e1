"""Starts one SGLang engine, sends it turns of prompts, prints what came back as one line of JSON.

Usage: python drive.py '{"engine": {...}, "turns": [...]}'. A turn is one of

    {"prompts": [[5, 6], [7]], "tokens": 8}    prompts of a batch
    {"follow": [9, 9], "tokens": 8}            the last prompts, each with its answer and these tokens behind
    {"again": true, "tokens": 8}               the last prompts once more
    {"flush": true}                            empty the prefix cache
"""

import json
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")

BASE = {
    "load_format": "dummy",
    "device": "cpu",
    "dtype": "float16",
    "skip_tokenizer_init": True,
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "disable_overlap_schedule": True,
    "max_running_requests": 4,
    "max_total_tokens": 1024,
    "context_length": 256,
    "chunked_prefill_size": -1,
    "random_seed": 1,
    "mem_fraction_static": 0.4,
    "log_level": os.environ.get("REPLAYSSM_TEST_LOG", "error"),
}
MARK = "REPLAYSSM-TEST "


def main(plan: dict) -> None:
    import sglang

    engine = sglang.Engine(**{**BASE, **plan["engine"]})
    try:
        print(MARK + json.dumps(Conversation(engine).hold(plan["turns"])), flush=True)
    finally:
        engine.shutdown()


class Conversation:
    """Turns of prompts, each of which may follow from the one before."""

    def __init__(self, engine) -> None:
        self.engine, self.prompts, self.answers = engine, [], []

    def hold(self, turns: list) -> list:
        return [self.take(turn) for turn in turns]

    def take(self, turn: dict) -> list:
        if turn.get("flush"):
            # A request that has just ended still counts as running for a moment, and the cache is kept.
            time.sleep(1.0)
            self.engine.flush_cache()
            return []
        if "prompts" in turn:
            self.prompts = turn["prompts"]
        elif "follow" in turn:
            pairs = zip(self.prompts, self.answers, strict=True)
            self.prompts = [prompt + answer["tokens"] + turn["follow"] for prompt, answer in pairs]
        self.answers = generate(self.engine, self.prompts, turn)
        return self.answers


def generate(engine, prompts: list, turn: dict) -> list:
    sampling = {"max_new_tokens": turn["tokens"], "temperature": 0, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=sampling, return_logprob=True, top_logprobs_num=2)
    return [
        {
            "tokens": answer["output_ids"],
            "margins": [first[0] - second[0] for first, second in answer["meta_info"]["output_top_logprobs"]],
            **{name: answer["meta_info"].get(name) for name in ("cached_tokens", "num_retractions", "spec_verify_ct")},
        }
        for answer in answers
    ]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
