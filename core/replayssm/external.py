"""Backends that live with an adapter: found by entry point, so that the core imports none of them.

An adapter names a module under `replayssm.backends`. The module has `supports(layout, device) -> (ok, reason)`, which looks
at what is installed, and `make_backend()`. The core's capability table has its row like any other backend's.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, cast

from replayssm.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from replayssm.backends import Backend
    from replayssm.layout import StateLayout

GROUP = "replayssm.backends"


class BackendModule(Protocol):
    """What the module of an entry point holds."""

    def supports(self, layout: StateLayout, device: torch.device) -> tuple[bool, str]:
        """Whether it serves here what the capability table says: `(True, "")`, or why not."""
        ...

    def make_backend(self) -> Backend:
        """The backend."""
        ...


def backend_module(name: str) -> BackendModule:
    """The module of an adapter's backend.

    Raises:
        UnsupportedError: no installed package registers it, or it cannot be imported.
    """
    for point in entry_points(group=GROUP, name=name):
        try:
            return cast("BackendModule", import_module(point.value))
        except Exception as error:  # whatever breaks an import is the reason that a user needs
            raise UnsupportedError(f"backend {name!r} cannot be imported: {type(error).__name__}: {error}") from None
    raise UnsupportedError(f"backend {name!r} comes with an adapter that is not installed; reinstall replayssm")


def external_supports(name: str, layout: StateLayout, device: torch.device) -> tuple[bool, str]:
    """Whether an adapter's backend serves a layout here."""
    try:
        module = backend_module(name)
    except UnsupportedError as error:
        return False, str(error)
    return module.supports(layout, device)
