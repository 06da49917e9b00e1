"""What runs, in one line a layer kind."""

from __future__ import annotations

import logging

from replayssm.traffic import ordinary_bytes
from replayssm_sglang.session import Session

logger = logging.getLogger(__name__)


def log_layers(session: Session) -> None:
    """Log what was decided."""
    logger.info("%s", describe(session))


def describe(session: Session) -> str:
    """Layers, mode, window, precision, backend and memory of a session that is ready."""
    layers = session.layers
    layout = layers.first.layout
    mode = "standard decode" if session.draft == 1 else f"{'trees' if session.tree else 'chains'} of {session.draft}"
    state, _ = ordinary_bytes(layout, 1)
    _, written = ordinary_bytes(layout, session.draft)
    plain = state + (written if session.draft > 1 else 0)
    return (
        f"replayssm: {len(layers)} {layout.recurrence.kind} layers, {mode}, window {layout.window}, "
        f"{layout.precision.describe()}, backend {layers.first.backend.name}, {layout.slots - 1} slots of "
        f"{len(layers) * layout.slot_bytes:,} bytes (a running request takes {len(layers) * plain:,} without)"
    )
