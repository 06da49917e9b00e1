"""ReplaySSM: state-space layers that cache their inputs, not their state.

A checkpoint and a ring of recent inputs stand for the state `[V, K]` of every head: half the state traffic in standard
decode, speculation whose rollback is a cursor move, and dual precision. The core knows no engine; adapters convert and call.
"""

from replayssm.config import ReplayConfig
from replayssm.errors import InputError, ReplaySSMError, StateFileError, StepError, UnsupportedError
from replayssm.inputs import RawGate, TokenInputs
from replayssm.layout import StateLayout
from replayssm.precision import PRESETS, PrecisionPolicy
from replayssm.recurrence import LayerKind, Recurrence
from replayssm.schedule import FlushPolicy
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
    "ReplaySSMError",
    "ReplayState",
    "StateFileError",
    "StateLayout",
    "StepError",
    "TokenInputs",
    "UnsupportedError",
    "__version__",
]
