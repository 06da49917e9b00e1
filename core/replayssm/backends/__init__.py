"""Implementations of the step protocol, by name."""

from __future__ import annotations

from functools import cache

from replayssm.backends.base import Backend
from replayssm.backends.naive import NaiveBackend
from replayssm.backends.vectorised import TorchBackend
from replayssm.capability import CAPABILITIES
from replayssm.errors import UnsupportedError
from replayssm.external import backend_module

__all__ = ["Backend", "NaiveBackend", "TorchBackend", "load_backend"]


@cache
def load_backend(name: str) -> Backend:
    """The backend of a name in the capability table.

    Raises:
        UnsupportedError: what it needs is not installed.
    """
    if name == "triton":
        try:
            from replayssm.backends.fused import TritonBackend
        except ImportError as error:
            raise UnsupportedError(f"backend 'triton' needs Triton 3.6 or newer: {error}") from None
        return TritonBackend()
    row = CAPABILITIES.get(name)
    if row is not None and row.external:
        return backend_module(name).make_backend()
    return NaiveBackend() if name == "naive" else TorchBackend()
