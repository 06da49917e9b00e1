"""The demo's measurements as tables on a terminal and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from replayssm_transformers.demo.measure import ModelReport


def print_report(console: Console, reports: list[ModelReport], text: str) -> None:
    """Decoding, speculation and quality, one table each; `text` is what the KL was measured on."""
    console.print(_decoding(reports))
    console.print(_speculation(reports))
    if any(report.quality for report in reports):
        console.print(_quality(reports, text))


def as_data(report: ModelReport) -> dict[str, Any]:
    """A report as plain JSON data; quality in bins over length."""
    return {
        "name": report.name,
        "layers": report.layers,
        "tokens": {
            "prompt": report.prompt_tokens,
            "drafts_prompt": report.drafts_prompt_tokens,
            "quality": report.quality_tokens,
        },
        "decoding": asdict(report.decoding),
        "speculation": asdict(report.speculation),
        "quality": {preset: divergence.as_data() for preset, divergence in report.quality.items()},
    }


def _decoding(reports: list[ModelReport]) -> Table:
    title = "Greedy decoding: state traffic per token and layer"
    table = _table(title, ("model", "same tokens", "read", "written", "ordinary (fp32)", "ratio"))
    for report in reports:
        d = report.decoding
        moved = d.read + d.written
        ratio = f"{d.ordinary / moved:.2f}x"
        table.add_row(report.name, f"{d.same}/{d.of}", _kib(d.read), _kib(d.written), _kib(d.ordinary), ratio)
    return table


def _speculation(reports: list[ModelReport]) -> Table:
    title = "Prompt-lookup drafts: rollback is a cursor move"
    table = _table(title, ("model", "same tokens", "drafts proposed", "accepted", "rolled back", "tokens per step"))
    for report in reports:
        s = report.speculation
        counts = (str(s.proposed), str(s.accepted), str(s.rolled_back))
        table.add_row(report.name, f"{s.same}/{s.of}", *counts, f"{s.tokens_per_step:.2f}")
    return table


def _quality(reports: list[ModelReport], text: str) -> Table:
    counts = sorted({report.quality_tokens for report in reports})
    tokens = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    title = f"KL to the fp32 recurrence, teacher forced over {tokens} {text} (nats per token)"
    table = _table(title, ("model", "state", "first quarter", "last quarter", "mean", "same top token"))
    for report in reports:
        for preset, divergence in report.quality.items():
            _, kl = divergence.by_length(4)
            cells = (f"{float(kl[0]):.2e}", f"{float(kl[-1]):.2e}", f"{divergence.mean:.2e}")
            table.add_row(report.name, preset, *cells, f"{divergence.same_top:.1%}")
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    """An empty table; words to the left, figures to the right."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in ("model", "state") else "right")
    return table


def _kib(count: float) -> str:
    return f"{count / 1024:.1f} KiB"
