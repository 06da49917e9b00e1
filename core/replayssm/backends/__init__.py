"""Implementations of the step protocol, by name."""

from __future__ import annotations

from replayssm.backends.base import Backend, LayerState
from replayssm.backends.naive import NaiveBackend
from replayssm.backends.vectorised import TorchBackend

BACKENDS: dict[str, Backend] = {"naive": NaiveBackend(), "torch": TorchBackend()}
"""Backends by the name that `ReplayConfig.backend` takes."""

__all__ = ["BACKENDS", "Backend", "LayerState", "NaiveBackend", "TorchBackend"]
