"""The cache layer that the mixer in execution works on, per thread. Operators are plain functions: they look here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replayssm_transformers.layer import ReplayLayer

_thread = threading.local()


def enter(layer: ReplayLayer | None) -> None:
    """A mixer starts; None when it runs without a cache."""
    _thread.layer = layer


def leave() -> None:
    """The mixer returned or raised."""
    _thread.layer = None


def current() -> ReplayLayer | None:
    """The layer of the mixer in execution, None outside of an enabled model."""
    return getattr(_thread, "layer", None)
