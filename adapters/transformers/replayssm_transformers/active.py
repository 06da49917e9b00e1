"""The cache layer that the mixer in execution works on, per thread. Operators are plain functions: they look here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replayssm_transformers.layer import ReplayLayer

_thread = threading.local()


def enter(layer: ReplayLayer | None, cache_layers: Sequence[object] = ()) -> None:
    """A mixer starts; None when it runs without a cache.

    Args:
        cache_layers: all layers of the cache; none when the layer stands alone.
    """
    _thread.layer, _thread.cache_layers = layer, cache_layers


def leave() -> None:
    """The mixer returned or raised."""
    _thread.layer, _thread.cache_layers = None, ()


def current() -> ReplayLayer | None:
    """The layer of the mixer in execution, None outside of an enabled model."""
    return getattr(_thread, "layer", None)


def cache_layers() -> Sequence[object]:
    """All layers of the cache that the mixer in execution works on."""
    return getattr(_thread, "cache_layers", ())
