"""SGLang's own serving client, `sglang.bench_serving`, and the tokenizer that it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from importlib.util import find_spec
from pathlib import Path

CLIENT = [sys.executable, "-W", "ignore", "-m", "sglang.bench_serving", "--backend", "sglang"]
LIMIT_SECONDS = 500
COMPLAINT = re.compile(r"Traceback|\bERROR\b|[Mm]em(?:ory)? [Ll]eak|[Ee]xception|Error:")
CANCELLED = "Request is disconnected from the client side"
"""What SGLang logs of a request whose sender is gone, as an error."""


def importable() -> bool:
    """Whether the client is: it imports what one of its datasets is read with."""
    return find_spec("datasets") is not None


def write_tokenizer(folder: Path, vocabulary: int) -> Path:
    """A tokenizer in `folder`, whose words are the numbers of its tokens: "7 12" is [7, 12]."""
    model = {"type": "WordLevel", "vocab": {str(i): i for i in range(vocabulary)}, "unk_token": "0"}
    parts = {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    folder.mkdir()
    for name, whole in (
        ("tokenizer.json", {"version": "1.0", "added_tokens": [], **parts, "model": model}),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(whole), encoding="utf-8")
    return folder


def words(tokens: list[int]) -> str:
    """Text of tokens."""
    return " ".join(map(str, tokens))


def answers(
    port: int, tokenizer: Path, prompts: list[list[int]], tokens: int, concurrency: int, environment: dict[str, str]
) -> list[tuple[int, list[int]]]:
    """What a server answers to the client: of each request the length of its prompt and its tokens.

    Args:
        tokenizer: its folder; the client's files go beside it.
        prompts: one a request, of two tokens or more: the client drops shorter ones.
        tokens: of each answer.
        concurrency: requests under way at once.
    """
    asked, found = tokenizer.parent / "requests.jsonl", tokenizer.parent / "answers.jsonl"
    turns = [[{"content": words(prompt)}, {"content": "0"}] for prompt in prompts]
    asked.write_text("".join(json.dumps({"conversations": both}) + "\n" for both in turns), encoding="utf-8")
    values = {
        "--host": "127.0.0.1", "--port": port, "--tokenizer": tokenizer, "--dataset-name": "custom", "--dataset-path": asked,
        "--sharegpt-output-len": tokens, "--num-prompts": len(prompts), "--max-concurrency": concurrency,
        "--output-file": found,
    }  # fmt: skip
    command = [*CLIENT, *(str(word) for pair in values.items() for word in pair), "--output-details", "--disable-tqdm"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    result = json.loads(found.read_text(encoding="utf-8"))
    assert [error for error in result["errors"] if error] == []
    assert result["completed"] == len(prompts)
    assert result["output_lens"] == [tokens] * len(prompts)
    texts = [[int(word) for word in text.split()] for text in result["generated_texts"]]
    return list(zip(result["input_lens"], texts, strict=True))


def cancel_beside(client: Future, ask: Callable[[], object], others: Executor, at_once: int) -> int:
    """Until the client is done, requests whose sender does not wait for the answer: how many were cancelled."""
    gone = 0
    while not client.done():
        for one in [others.submit(ask) for _ in range(at_once)]:
            assert isinstance(one.exception(), TimeoutError), one.exception() or one.result()
            gone += 1
    return gone


def complaints(log: str) -> list[str]:
    """Lines of a server's log that tell of an error or of a slot that nobody holds."""
    return [line for line in log.splitlines() if COMPLAINT.search(line) and CANCELLED not in line]
