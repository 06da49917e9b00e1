"""Metrics: what they count, one report late, and only where SGLang exports."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_engine import GROUPS, HEADS, LAYERS, K, V, make_session

from replayssm import TokenInputs
from replayssm_sglang import metrics
from replayssm_sglang.report import describe


def verify(session, rows=2, draft=1):
    for index in range(len(LAYERS)):
        inputs = TokenInputs(
            q=torch.randn(rows, draft, GROUPS, K),
            k=torch.randn(rows, draft, GROUPS, K),
            v=torch.randn(rows, draft, HEADS, V),
            gate=-torch.rand(rows, draft, HEADS),
            beta=torch.rand(rows, draft, HEADS),
        )
        slots = torch.arange(1, rows + 1)
        session.steps.verify(index, inputs, slots) if draft > 1 else session.steps.decode(index, inputs, slots)


def test_numbers_are_those_of_a_meter_of_one_layer_times_the_layers():
    metered, _ = make_session(draft=3, metrics=True)
    for _ in range(3):
        verify(metered, draft=3)
        metered.layers.commit(torch.tensor([1, 2]), torch.tensor([1, 2]))
    meter = metered.layers.meter.totals()
    values = metrics.device_numbers(metered).tolist()
    found = metrics.totals(values, len(LAYERS))
    assert meter["steps"] == 6
    assert found["replayssm_flush_total"] == meter["flushes"] > 0
    assert found["replayssm_drafts_rolled_back_total"] == meter["rolled_back"] == 18 - 9
    assert found["replayssm_state_bytes_written_total"] == len(LAYERS) * meter["bytes_written"]
    assert 0.0 < metrics.fill_ratio(metered, values) <= 1.0


def test_readout_is_one_report_late():
    readout = metrics.Readout()
    assert readout.exchange(torch.tensor([1])) is None
    assert readout.exchange(torch.tensor([2])).tolist() == [1]


def test_exports_on_the_rank_that_does_and_counts_each_byte_once():
    prometheus = pytest.importorskip("prometheus_client")
    session, _ = make_session(metrics=True)
    reporter = SimpleNamespace(
        current_scheduler_metrics_enabled=False, metrics_collector=SimpleNamespace(labels={"model_name": "tiny"})
    )
    exporter = metrics.Exporter()
    exporter.report(session, None, reporter)
    assert exporter._calls == 0
    reporter.current_scheduler_metrics_enabled = True
    for _ in range(3 * metrics.EVERY):
        verify(session)
        exporter.report(session, None, reporter)
    text = prometheus.generate_latest().decode()
    total = session.layers.meter.totals()
    written = float(text.split('replayssm_state_bytes_written_total{model_name="tiny"} ')[1].split()[0])
    assert 0 < written < len(LAYERS) * total["bytes_written"]
    assert 'window="4"' in text


def test_a_sum_that_goes_back_keeps_its_counter():
    prometheus = pytest.importorskip("prometheus_client")
    session, _ = make_session(metrics=True)
    exporter, labels, registry = metrics.Exporter(), {"model_name": "tiny"}, prometheus.CollectorRegistry()
    exporter._metrics = {
        name: prometheus.Counter(name, name, [*labels], registry=registry) for name in metrics.COUNTERS
    }
    exporter._metrics["replayssm_ring_fill_ratio"] = prometheus.Gauge("fill", "fill", [*labels], registry=registry)
    # Drafts proposed and accepted so far. The first report came before the acceptance of 8.
    for drafted, accepted, rolled_back in ((8, 0, 8), (16, 12, 8), (32, 20, 12)):
        exporter._export(session, labels, [0, 0, drafted, accepted, 0, 0, 0, 0, 0])
        assert registry.get_sample_value("replayssm_drafts_rolled_back_total", labels) == rolled_back


def test_one_line_says_what_runs():
    session, _ = make_session(draft=3)
    line = describe(session)
    for part in (
        "2 gdn layers",
        "chains of 3",
        "window 4",
        "fp32 checkpoint, no read copy",
        "backend torch",
        "5 slots",
    ):
        assert part in line
