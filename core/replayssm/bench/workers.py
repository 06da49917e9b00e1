"""Checks in processes of their own: kernels compile on every core, and a crash takes no measurement with it.

What a check compiles stays in Triton's cache on disk, where the process that measures finds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from multiprocessing import get_context
from types import TracebackType

import torch

Check = Callable[[], None]
"""Passes by returning; a `functools.partial` of a function of some module, so that it can be sent."""


def default_jobs() -> int:
    """Half of the cores, at most 12: each worker holds a CUDA context."""
    return max(1, min(12, (os.cpu_count() or 1) // 2))


class Workers(AbstractContextManager["Workers"]):
    """Runs checks.

    Args:
        jobs: processes; 1 runs checks in this process.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def failures(self, checks: Sequence[Check]) -> list[str | None]:
        """Why each check fails, None where it passes."""
        if self.jobs == 1:
            return [_outcome(check) for check in checks]
        found = [_result(future) for future in [self._submit(check) for check in checks]]
        # An illegal access leaves a worker's device unusable for the checks after it, which then deserve a new one.
        for i, failure in enumerate(found):
            if failure is not None and _lost(failure):
                self.close()
                found[i] = _result(self._submit(checks[i]))
        return found

    def close(self) -> None:
        """End the processes; the next checks start new ones."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(self, check: Check) -> Future[str | None]:
        """A pool that a crash has broken meanwhile takes nothing: then the result is that."""
        try:
            return self._running().submit(_outcome, check)
        except BrokenProcessPool as error:
            lost: Future[str | None] = Future()
            lost.set_exception(error)
            return lost

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not forked: CUDA does not survive a fork.
            self._pool = ProcessPoolExecutor(
                self.jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool


def _outcome(check: Check) -> str | None:
    try:
        check()
    except AssertionError as error:
        return str(error) or "an assertion failed"
    except Exception as error:
        return f"{type(error).__name__}: {_last_line(error)}"
    return None


def _result(future: Future[str | None]) -> str | None:
    try:
        return future.result()
    except BrokenProcessPool as error:
        return f"BrokenProcessPool: {_last_line(error)}"


def _lost(failure: str) -> bool:
    return "CUDA error" in failure or failure.startswith("BrokenProcessPool")


def _last_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")[:300]
