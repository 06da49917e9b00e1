"""Rows of an engine's measurements, printed and written as they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replayssm.records import circumstances, installed, write_json

KEYS = ("model", "batch", "draft")
BASELINES = {"plain_us": "plain", "sglang_replay_us": "sglang-replay"}
"""Field → mode that it is of."""


@dataclass
class Report:
    """Everything found so far.

    Attributes:
        meta: device, versions, git ref, command and settings.
        rows: model, mode, batch, draft, us, plain_us, sglang_replay_us, ratio = plain_us / us.
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
        row["us"] = round(row["us"], 1)
        self.rows.append(row)
        self._compare()
        print(
            "  ".join(f"{name}={row.get(name)}" for name in ("model", "mode", "batch", "draft", "us", "ratio")),
            flush=True,
        )

    def write(self, path: Path) -> None:
        """Write the JSON file."""
        write_json(path, {"meta": {**self.meta, "errors": self.errors}, "rows": self.rows})

    def _compare(self) -> None:
        times = {(*(row[key] for key in KEYS), row["mode"]): row["us"] for row in self.rows}
        for row in self.rows:
            here = tuple(row[key] for key in KEYS)
            row.update({name: times.get((*here, mode)) for name, mode in BASELINES.items()})
            row["ratio"] = row["plain_us"] and round(row["plain_us"] / row["us"], 3)
