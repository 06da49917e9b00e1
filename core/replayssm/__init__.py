"""ReplaySSM: state-space layers that cache their inputs, not their state.

A checkpoint and a ring of recent inputs stand for the state `[V, K]` of every head: half the state traffic in standard
decode, speculation whose rollback is a cursor move, and dual precision. The core knows no engine; adapters convert and call.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replayssm.config import ReplayConfig
    from replayssm.errors import InputError, ReplaySSMError, StateFileError, StepError, UnsupportedError
    from replayssm.inputs import RawGate, TokenInputs
    from replayssm.layers import ReplayLayers
    from replayssm.layout import StateLayout
    from replayssm.precision import PRESETS, PrecisionPolicy
    from replayssm.recurrence import LayerKind, Recurrence
    from replayssm.schedule import FlushPolicy
    from replayssm.snapshot import load_slots, save_slots
    from replayssm.state import ReplayState

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "FlushPolicy",
    "InputError",
    "LayerKind",
    "PrecisionPolicy",
    "RawGate",
    "Recurrence",
    "ReplayConfig",
    "ReplayLayers",
    "ReplaySSMError",
    "ReplayState",
    "StateFileError",
    "StateLayout",
    "StepError",
    "TokenInputs",
    "UnsupportedError",
    "__version__",
    "load_slots",
    "save_slots",
]

# Loaded on first use: the package must import where torch does not, so that `replayssm doctor` can say what is wrong.
_HOMES = {
    "PRESETS": "precision",
    "FlushPolicy": "schedule",
    "InputError": "errors",
    "LayerKind": "recurrence",
    "PrecisionPolicy": "precision",
    "RawGate": "inputs",
    "Recurrence": "recurrence",
    "ReplayConfig": "config",
    "ReplayLayers": "layers",
    "ReplaySSMError": "errors",
    "ReplayState": "state",
    "StateFileError": "errors",
    "StateLayout": "layout",
    "StepError": "errors",
    "TokenInputs": "inputs",
    "UnsupportedError": "errors",
    "load_slots": "snapshot",
    "save_slots": "snapshot",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
