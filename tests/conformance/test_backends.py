"""The core's own backends pass the kit that engine adapters run."""

from __future__ import annotations

from replayssm.conformance import CoreSubject
from replayssm.conformance.suite import BackendConformance


class TestTorch(BackendConformance):
    subject = CoreSubject("torch")


class TestNaive(BackendConformance):
    subject = CoreSubject("naive", batches=(1, 2, 7, 33, 99))
