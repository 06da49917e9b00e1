"""Measuring processes: several start at once, which takes most of the time, and measure one after another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from replayssm.config import ENVIRONMENT
from replayssm_sglang.bench.protocol import READY, ROW, heard
from replayssm_sglang.measured import ALWAYS

_TELLING = re.compile(r"^(\[\w+\]: )?[\w.]*(Error|Exception)\b|replayssm: ")
"""A line that says why a process ended: an exception's, some of them marked with a rank."""


@dataclass(frozen=True)
class Job:
    """One process.

    Attributes:
        module: what it runs.
        plan: its argument.
        config: ours, None for SGLang alone.
        labels: what its rows are of.
        variables: of its environment.
    """

    module: str
    plan: Mapping[str, Any]
    config: Mapping[str, Any] | None
    labels: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


def measure(
    jobs: Sequence[Job], logs: Path, parallel: int, site: Path, limit: float = 900.0
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Each row of each job as it comes; a process that ends early has its last words in a row "error".

    Args:
        logs: folder for what the processes print.
        parallel: processes that start together; their engines share the GPU's memory.
        site: folder for PYTHONPATH, with the entry point of `dummy`.
        limit: seconds that a process has to get ready, and as many to measure; then it is ended.
    """
    for first in range(0, len(jobs), parallel):
        some = enumerate(jobs[first : first + parallel], first)
        running = [(job, _Process(job, logs, number, site, limit)) for number, job in some]
        try:
            # All of them are up before one measures.
            ready = [(job, process, process.wait_ready()) for job, process in running]
            for job, process, error in ready:
                yield from ((job, row) for row in ([{"error": error}] if error else process.rows()))
        finally:
            for _, process in running:
                process.end()


class _Process:
    def __init__(self, job: Job, logs: Path, number: int, site: Path, limit: float) -> None:
        self._limit = limit
        log = logs / f"{number:02}-{'-'.join(str(x) for x in job.labels.values())}.log"
        log.unlink(missing_ok=True)
        self._log = log.open("a+")
        self._running = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", job.module, json.dumps(job.plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(job, site),
        )

    def wait_ready(self) -> str | None:
        """None once it is up, or why it is not."""
        return None if next(self._heard(READY), None) is not None else self._last_words()

    def rows(self) -> Iterator[dict[str, Any]]:
        assert self._running.stdin is not None, "a pipe"
        # One that has died since has its last words below.
        with suppress(BrokenPipeError):
            self._running.stdin.write("go\n")
            self._running.stdin.flush()
        yield from self._heard(ROW)
        if self._running.wait() != 0:
            yield {"error": self._last_words()}

    def end(self) -> None:
        """Stop it and what it started."""
        self._running.terminate()
        try:
            self._running.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._running.kill()
        self._log.close()

    def _heard(self, mark: str) -> Iterator[dict[str, Any]]:
        assert self._running.stdout is not None, "a pipe"
        timer = Timer(self._limit, self._running.kill)
        timer.start()
        try:
            for line in self._running.stdout:
                facts = heard(line, mark)
                if facts is None:
                    print(line, end="", file=self._log, flush=True)
                    continue
                yield facts
                if mark == READY:
                    return
        finally:
            timer.cancel()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        telling = [line for line in lines if _TELLING.search(line)]
        return "; ".join(telling[-1:] or lines[-3:]) or "it said nothing"


def _environment(job: Job, site: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
    paths = [str(site), kept.get("PYTHONPATH", "")]
    mine = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), ALWAYS: "1"}
    ours = {} if job.config is None else {ENVIRONMENT: json.dumps(job.config)}
    return {**kept, **mine, **job.variables, **ours}


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for models and entry points that goes when it is left."""
    return tempfile.TemporaryDirectory(prefix="replayssm-bench-")
