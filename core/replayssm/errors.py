"""Exceptions. Each names the argument, the value and what is allowed, and is raised before any state is touched."""

from __future__ import annotations


class ReplaySSMError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(ReplaySSMError, ValueError):
    """An argument is out of range, of the wrong shape or dtype, or not finite."""


class StepError(ReplaySSMError, RuntimeError):
    """A call of the step protocol came out of order."""


class UnsupportedError(ReplaySSMError, NotImplementedError):
    """A combination of layer, mode, precision, backend or model that is not served."""


class StateFileError(ReplaySSMError, ValueError):
    """A state file is truncated, foreign, or of another layout."""
