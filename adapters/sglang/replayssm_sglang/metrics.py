"""Metrics beside SGLang's own, on the same page. The hot path adds to counters on the device and reads none of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from replayssm.traffic import TrafficMeter
from replayssm_sglang.calls import Foreign
from replayssm_sglang.session import Session

EVERY = 40
"""Decode batches between two reports."""

COUNTERS = {
    "replayssm_flush_total": "States written by decode steps whose window was full.",
    "replayssm_state_bytes_written_total": "Bytes of states and records written.",
    "replayssm_state_bytes_saved_total": "Bytes that the ordinary decode would have moved beyond ours.",
    "replayssm_drafts_rolled_back_total": "Draft tokens that were not accepted.",
}


class Readout:
    """Numbers of the device, one report late: a copy is started, and read at the next report, when it has long arrived."""

    def __init__(self) -> None:
        self._copy: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def exchange(self, values: Tensor) -> Tensor | None:
        """The values of the last call, None at the first one or while they are under way; `values` start on their way."""
        if self._arrived is not None and not self._arrived.query():
            return None
        last = self._copy
        if values.is_cuda:
            self._copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        else:
            self._copy = values.clone()
        return last


class Exporter:
    """Prometheus counters of one scheduler process."""

    def __init__(self) -> None:
        self._readout, self._calls = Readout(), 0
        self._seen: dict[str, int] = {}
        self._metrics: Mapping[str, Foreign] | None = None

    def report(self, session: Session, _result: None, reporter: Foreign, *_args: Foreign, **_kwargs: Foreign) -> None:
        """After SGLang counted a decode batch, on the rank that exports."""
        if not reporter.current_scheduler_metrics_enabled or session.layers.meter is None:
            return
        self._calls += 1
        if self._calls % EVERY != 1:
            return
        values = self._readout.exchange(device_numbers(session))
        if values is not None:
            self._export(session, reporter.metrics_collector.labels, values.tolist())

    def _export(self, session: Session, labels: Mapping[str, str], values: list[int]) -> None:
        if self._metrics is None:
            self._metrics = make_metrics(session, labels)
        for name, total in totals(values, len(session.layers)).items():
            # A difference of sums may go back, by drafts that a report saw before their acceptance; a counter may not.
            grown = max(0, total - self._seen.get(name, 0))
            self._metrics[name].labels(**labels).inc(grown)
            self._seen[name] = self._seen.get(name, 0) + grown
        self._metrics["replayssm_ring_fill_ratio"].labels(**labels).set(fill_ratio(session, values))


def device_numbers(session: Session) -> Tensor:
    """The meter's sums, records of all slots, and slots that have any: `[9]` int64 on the device."""
    meter, cursors = session.layers.meter, session.layers.cursors
    assert meter is not None, "reported only where there is a meter"
    (sums,) = meter.counters.values()
    committed = cursors.committed.long()
    return torch.cat([sums, torch.stack([committed.sum(), (committed > 0).sum()])])


def totals(values: list[int], layers: int) -> dict[str, int]:
    """Counters by name; the meter counts one layer."""
    sums = dict(zip(TrafficMeter.NAMES, values, strict=False))
    moved = sums["bytes_read"] + sums["bytes_written"]
    return {
        "replayssm_flush_total": sums["flushes"],
        "replayssm_state_bytes_written_total": layers * sums["bytes_written"],
        "replayssm_state_bytes_saved_total": layers * max(0, sums["ordinary_bytes"] - moved),
        "replayssm_drafts_rolled_back_total": max(0, sums["drafted"] - sums["accepted"]),
    }


def fill_ratio(session: Session, values: list[int]) -> float:
    """Records of the slots that have any, as a share of their windows."""
    records, slots = values[-2:]
    return records / (slots * session.config.window) if slots else 0.0


def make_metrics(session: Session, labels: Mapping[str, str]) -> dict[str, Foreign]:
    """The metrics by name. Imported late: SGLang sets the directory of several processes first."""
    from prometheus_client import Counter, Gauge

    names = list(labels)
    made: dict[str, Foreign] = {name: Counter(name, text, names) for name, text in COUNTERS.items()}
    made["replayssm_ring_fill_ratio"] = Gauge(
        "replayssm_ring_fill_ratio", "Records held, as a share of the windows.", names, multiprocess_mode="mostrecent"
    )
    layout = session.layers.first.layout
    facts = {
        "layers": f"{len(session.layers)} {layout.recurrence.kind}",
        "window": str(layout.window),
        "draft": str(layout.max_draft),
        "precision": layout.precision.describe(),
        "backend": session.layers.first.backend.name,
    }
    info = Gauge("replayssm_info", "What runs.", [*names, *facts], multiprocess_mode="mostrecent")
    info.labels(**labels, **facts).set(1)
    return made
