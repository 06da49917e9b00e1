"""Rows of an engine's measurements, printed and written as they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replayssm.records import circumstances, installed, write_json

KEYS = ("model", "batch", "draft")
BASELINES = {"plain": "plain", "sglang_replay": "sglang-replay"}
"""Start of a field → mode that it is of."""

TIME, CAPACITY = "us", "requests"
"""What a row holds: a time, less of which is better, or a number of requests."""


@dataclass
class Report:
    """Everything found so far.

    Attributes:
        meta: device, versions, git ref, command and settings.
        rows: model, mode, batch, draft, us, plain_us, sglang_replay_us, ratio = plain_us / us; or, of engines asked how
            many requests they hold, model, mode, draft, requests, plain_requests, ratio = requests / plain_requests.
        errors: engines that did not run, with their last words.
    """

    meta: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def begin(cls, ref: str | None, settings: Mapping[str, Any]) -> Report:
        """An empty one, with its circumstances."""
        import torch

        meta = circumstances(torch.device("cuda" if torch.cuda.is_available() else "cpu"), ref)
        meta["versions"]["sglang"] = installed("sglang")
        return cls({**meta, "settings": dict(settings)})

    def add(self, labels: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Take a row, or an error, and print it."""
        if "error" in found:
            self.errors.append({**labels, **found})
            print(f"{' '.join(map(str, labels.values()))}: {found['error']}", flush=True)
            return
        row = {**labels, **found}
        if TIME in row:
            row[TIME] = round(row[TIME], 1)
        self.rows.append(row)
        self._compare()
        shown = ("model", "mode", "batch", "draft", TIME, CAPACITY, "ratio")
        print("  ".join(f"{name}={row[name]}" for name in shown if name in row), flush=True)

    def write(self, path: Path) -> None:
        """Write the JSON file."""
        write_json(path, {"meta": {**self.meta, "errors": self.errors}, "rows": self.rows})

    def _compare(self) -> None:
        for what in (TIME, CAPACITY):
            rows = [row for row in self.rows if what in row]
            found = {(*_place(row), row["mode"]): row[what] for row in rows}
            for row in rows:
                row.update({f"{name}_{what}": found.get((*_place(row), mode)) for name, mode in BASELINES.items()})
                row["ratio"] = _times_better(row, what)


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in KEYS)


def _times_better(row: Mapping[str, Any], what: str) -> float | None:
    here, plain = row[what], row[f"plain_{what}"]
    if plain is None:
        return None
    return round(float(plain / here if what == TIME else here / plain), 3)
