"""Runs `drive.py` with one of the small models in a process of its own: a fresh engine for every question."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
MARK = "REPLAYSSM-TEST "
LIMIT_SECONDS = 400


def installed() -> bool:
    """Whether SGLang and the test platform are; this folder's name would satisfy an import."""
    try:
        return bool(version("sglang") and version("replayssm-sglang-cpu"))
    except PackageNotFoundError:
        return False


def model_path(root: Path, kind: str) -> Path:
    """A directory with the configuration of a small model; weights are made up at load."""
    path = root / kind
    path.mkdir(exist_ok=True)
    shutil.copy(HERE / "models" / f"{kind}.json", path / "config.json")
    return path


ON_CPU = {
    "PYTHONPATH": os.pathsep.join([str(HERE / "cpu_platform" / "site"), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
    "REPLAYSSM_DUMMY_WEIGHT_SCALE": "0.25",
    "SGLANG_MAMBA_CONV_DTYPE": "float16",
    "SGLANG_PLATFORM": "replayssm_cpu",
    "TRITON_INTERPRET": "1",
}
"""Environment of the engine on the test platform."""


def on_gpu(site: Path) -> dict[str, str]:
    """Environment of the engine on a GPU, with made-up weights; `site` for the entry point that they need."""
    from replayssm_sglang.bench.dummy import WEIGHT_SCALE, write_entry_point

    paths = [str(write_entry_point(site)), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(paths), WEIGHT_SCALE: "0.25", "SGLANG_MAMBA_CONV_DTYPE": "float16"}


def environment(config: dict | None, machine: dict[str, str] = ON_CPU) -> dict[str, str]:
    """Of an engine process, with REPLAYSSM_CONFIG where there is a configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REPLAYSSM")}
    return {**kept, **machine, **({} if config is None else {"REPLAYSSM_CONFIG": json.dumps(config)})}


def converse(
    path: Path,
    engine: dict,
    turns: list[dict],
    config: dict | None = None,
    machine: dict[str, str] = ON_CPU,
    **variables: str,
) -> list[list[dict]]:
    """What an engine answers in each turn (see `drive.py`); `variables` of its environment besides."""
    plan = json.dumps({"engine": {"model_path": str(path), **engine}, "turns": turns})
    command = [sys.executable, "-W", "ignore", str(HERE / "drive.py"), plan]
    done = subprocess.run(
        command,
        env={**environment(config, machine), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert answers, f"the engine ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(answers[-1].removeprefix(MARK))


def tokens_until_tie(ours: list[dict], theirs: list[dict], tie: float) -> int:
    """How many tokens were compared: answers are equal up to the first tie of theirs, two logits closer than `tie`."""
    compared = 0
    for mine, other in zip(ours, theirs, strict=True):
        pairs = zip(mine["tokens"], other["tokens"], other["margins"], strict=True)
        same, margin = next(
            ((i, margin) for i, (a, b, margin) in enumerate(pairs) if a != b), (len(other["tokens"]), 0.0)
        )
        assert margin < tie, f"token {same}, ahead by {margin}: {mine['tokens']}, {other['tokens']}"
        compared += same
    return compared
