"""The transformers adapter passes the kit, with its cache layers and operators in place of `ReplayState`."""

from __future__ import annotations

import pytest

from replayssm.conformance.suite import BackendConformance
from replayssm.recurrence import LayerKind
from replayssm_transformers.conformance import TransformersSubject
from replayssm_transformers.handle import ReplayHandle
from replayssm_transformers.layer import ReplayLayer


class TestTransformers(BackendConformance):
    subject = TransformersSubject()


class TestDraftsOneByOne(BackendConformance):
    subject = TransformersSubject(one_by_one=True)


def accept_all(handle, count):  # noqa: ARG001
    crop(handle, 0)


def lose_records(layer):
    if layer.handle is not None:
        layer.handle.replay.load([0], layer.handle.replay.state([0], [0]))
    release(layer)


crop, release = ReplayHandle.crop, ReplayLayer.release
FAULTS = [
    (ReplayHandle, "crop", accept_all, "test_acceptance_at_both_ends"),
    (ReplayLayer, "reset", lambda layer: None, "test_reuse_after_nan_is_a_fresh_slot"),  # noqa: ARG005
    (ReplayLayer, "release", lose_records, "test_forced_flush_keeps_the_state"),
]


@pytest.mark.parametrize(("owner", "name", "fault", "case"), FAULTS, ids=[case for *_, case in FAULTS])
@pytest.mark.parametrize("layer", LayerKind)
def test_wrong_adapters_fail(monkeypatch, layer, owner, name, fault, case):
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        getattr(TestTransformers(), case)(layer=layer, seed=1)
