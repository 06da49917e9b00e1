"""Ground for a subject's state: the calls that a subject may leave undeclared, as refusals."""

# The arguments are those of the protocol.
# ruff: noqa: ARG002

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from replayssm.conformance.subject import CursorView
from replayssm.errors import UnsupportedError
from replayssm.layout import Buffers


class UndeclaredCalls:
    """Override what the subject declares. `load`, `verify`, `commit` and `state` are the subclass's own."""

    @property
    def buffers(self) -> Buffers:
        """Refused."""
        _refuse("visible buffers")

    @property
    def cursors(self) -> CursorView:
        """Refused."""
        _refuse("visible cursors")

    def reset(self, slots: Tensor) -> None:
        """Refused."""
        _refuse("reset")

    def commit_path(self, path: Tensor) -> None:
        """Refused."""
        _refuse("decode mode tree")

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Refused."""
        _refuse("copy")

    def materialise(self, source: Tensor, target: Tensor, count: Tensor | None = None) -> None:
        """Refused."""
        _refuse("materialise")

    def flush(self, slots: Tensor) -> None:
        """Refused."""
        _refuse("flush")


def _refuse(what: str) -> NoReturn:
    raise UnsupportedError(f"this subject does not declare {what}")
