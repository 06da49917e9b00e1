"""Starts one SGLang engine, sends it turns of prompts, prints what came back as one line of JSON.

Usage: python drive.py '{"engine": {...}, "turns": [{"prompts": [[5, 6]], "tokens": 8}, {"flush": true}]}'
"""

import json
import os
import sys
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
    "mem_fraction_static": 0.1,
    "log_level": os.environ.get("REPLAYSSM_TEST_LOG", "error"),
}
MARK = "REPLAYSSM-TEST "


def main(plan: dict) -> None:
    import sglang

    engine = sglang.Engine(**{**BASE, **plan["engine"]})
    try:
        print(MARK + json.dumps([take(engine, turn) for turn in plan["turns"]]), flush=True)
    finally:
        engine.shutdown()


def take(engine, turn: dict) -> list:
    if turn.get("flush"):
        engine.flush_cache()
        return []
    sampling = {"max_new_tokens": turn["tokens"], "temperature": 0, "ignore_eos": True, **turn.get("sampling", {})}
    answers = engine.generate(
        input_ids=turn["prompts"], sampling_params=sampling, return_logprob=True, top_logprobs_num=2
    )
    return [
        {
            "tokens": answer["output_ids"],
            "margins": [first[0] - second[0] for first, second in answer["meta_info"]["output_top_logprobs"]],
            **{name: answer["meta_info"].get(name) for name in ("cached_tokens", "spec_verify_ct")},
        }
        for answer in answers
    ]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
