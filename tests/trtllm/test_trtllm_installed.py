"""Inside a real TensorRT-LLM, for whoever has it: nothing here has run where this was written.

    pytest tests/trtllm/test_trtllm_installed.py
    REPLAYSSM_TRTLLM_MODEL=path/to/model pytest tests/trtllm/test_trtllm_installed.py

The first line compares the installed engine with what was recorded; the second also decodes, on its GPU.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_llm")

from replayssm_trtllm import ReplaySSMConfig, compat
from replayssm_trtllm.surface import SYMBOLS, check, find

MODEL = os.environ.get("REPLAYSSM_TRTLLM_MODEL")
needs_model = pytest.mark.skipif(not MODEL, reason="REPLAYSSM_TRTLLM_MODEL names no model")
CONTRACT = json.loads(Path(__file__).with_name("contract.json").read_text(encoding="utf-8"))
PROMPTS = ("The capital of France is", "1, 1, 2, 3, 5, 8,", "def fibonacci(n):")
MTP = {"decoding_type": "MTP", "max_draft_len": 3}
MARK = "greedy tokens: "


def nested():
    """Where the model's text configuration is, from its config.json; a name that is no directory is taken as flat."""
    file = Path(MODEL) / "config.json"
    composite = file.is_file() and "text_config" in json.loads(file.read_text(encoding="utf-8"))
    return "text_config" if composite else None


def test_the_installed_generation_is_known():
    found = compat.examine()
    assert found.generation is not None, found.reason


@pytest.mark.parametrize("symbol", SYMBOLS, ids=[f"{'/'.join(s.generations)}-{s.label}" for s in SYMBOLS])
def test_each_symbol_is_as_recorded(symbol):
    generation = compat.examine().generation
    if generation not in symbol.generations:
        pytest.skip(f"not of generation {generation}")
    ok, reason = check(symbol)
    assert ok, reason
    groups = [group for key, group in CONTRACT["symbols"].items() if generation in key]
    recorded = next(group[symbol.label] for group in groups if symbol.label in group)
    found = find(symbol.module, symbol.name)
    if inspect.isfunction(found):
        assert set(recorded) <= set(inspect.signature(found).parameters)


def tokens(fields, speculative):
    """Greedy tokens of a process of its own: once registered, the plugin's models stay in theirs.

    Args:
        fields: of ReplaySSMConfig, None for the engine alone.
    """
    request = json.dumps({"fields": fields, "speculative": speculative})
    result = subprocess.run(
        [sys.executable, __file__], input=request, stdout=subprocess.PIPE, text=True, check=True, timeout=1800
    )
    return json.loads(result.stdout.rpartition(MARK)[2].splitlines()[0])


def decode(fields, speculative):
    from tensorrt_llm import LLM, SamplingParams

    if fields is None:
        kwargs = {"kv_cache_config": {"mamba_ssm_cache_dtype": "float32"}, "speculative_config": speculative}
    else:
        kwargs = ReplaySSMConfig(**fields).to_llm_kwargs(speculative, nested=nested())
    llm = LLM(MODEL, **kwargs)
    try:
        outputs = llm.generate(list(PROMPTS), SamplingParams(max_tokens=96, temperature=0.0))
        return [list(output.outputs[0].token_ids) for output in outputs]
    finally:
        llm.shutdown()


@needs_model
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("speculative", [None, MTP], ids=["decode", "drafts"])
def test_the_same_greedy_tokens_as_the_engine_alone(backend, speculative):
    fields = {"decode": True, "window": 16, "checkpoint_dtype": "float32", "backend": backend}
    assert tokens(fields, speculative) == tokens(None, speculative)


if __name__ == "__main__":
    sys.stdout.write(f"\n{MARK}{json.dumps(decode(**json.load(sys.stdin)))}\n")
