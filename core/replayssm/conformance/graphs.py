"""A subject whose every call is captured in a CUDA graph once and replayed from then on, with new values at fixed addresses.

What is captured is padding (slot −1), so a capture changes nothing. On a device without graphs a replay is the call itself
on the same fixed tensors: enough to try the cases, not to pass them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from replayssm.capability import Capability
from replayssm.conformance.inputs import mapped, overwrite
from replayssm.conformance.subject import CursorView, Dims, Feature, StateOptions, Subject, SubjectState
from replayssm.inputs import TokenInputs
from replayssm.layout import Buffers, StateLayout

Out = TypeVar("Out")
WARM_UPS = 2


def record(call: Callable[[], Out], device: torch.device) -> Callable[[], Out]:
    """Capture a call: the function that replays it and returns the call's own result, at its fixed address."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> Out:
        graph.replay()
        return out

    return replay


class Fixed:
    """Integers at a fixed address, padding until they are set."""

    def __init__(self, like: Tensor, padding: int) -> None:
        self.tensor = torch.full_like(like, padding, memory_format=torch.contiguous_format)

    def set(self, values: Tensor | int) -> None:
        """New values."""
        self.tensor.copy_(torch.as_tensor(values))


@dataclass
class Step(Generic[Out]):
    """One shape of step: its fixed inputs and its graphs."""

    inputs: TokenInputs
    integers: dict[str, Fixed]
    accepted: Fixed
    path: Fixed
    verify: Callable[[], Tensor]
    commit: Callable[[], None]
    commit_path: Callable[[], None] | None


class GraphState:
    """A subject's state, through graphs. `state` runs as it is, so that it also shows what eager calls see after replays."""

    def __init__(self, state: SubjectState, device: torch.device) -> None:
        self.inner, self.device = state, device
        self.steps: dict[object, Step[Tensor]] = {}
        self.calls: dict[object, tuple[dict[str, Fixed], Tensor | None, Callable[[], None]]] = {}
        self.open: Step[Tensor] | None = None

    @property
    def buffers(self) -> Buffers:
        """The subject's."""
        return self.inner.buffers

    @property
    def cursors(self) -> CursorView:
        """The subject's."""
        return self.inner.cursors

    def state(self, slots: Tensor, count: Tensor | None = None) -> Tensor:
        """Not captured."""
        return self.inner.state(slots, count)

    def verify(
        self,
        inputs: TokenInputs,
        slots: Tensor,
        lengths: Tensor | None = None,
        parents: Tensor | None = None,
        drain: Tensor | None = None,
    ) -> Tensor:
        """A step by replay; each combination of shapes and arguments has its own graph."""
        given = {"slots": slots, "lengths": lengths, "parents": parents, "drain": drain}
        present = {name: tensor for name, tensor in given.items() if tensor is not None}
        key = (inputs.batch, inputs.draft, *present)
        if key not in self.steps:
            self.steps[key] = self._record_step(inputs, present)
        step = self.open = self.steps[key]
        for name, tensor in present.items():
            step.integers[name].set(tensor)
        overwrite(step.inputs, inputs)
        return step.verify().clone()

    def commit(self, accepted: Tensor) -> None:
        """The commit of the last step's graph."""
        assert self.open is not None, "commit before any step"
        self.open.accepted.set(accepted)
        self.open.commit()

    def commit_path(self, path: Tensor) -> None:
        """The same for a tree; a path is padded to the draft's length, so one graph serves all depths."""
        assert self.open is not None, "commit_path before any step"
        assert self.open.commit_path is not None, "commit_path of a chain"
        self.open.path.set(-1)
        self.open.path.tensor[:, : path.shape[1]] = path
        self.open.commit_path()

    def load(self, slots: Tensor, state: Tensor, position: Tensor | int = 0) -> None:
        """By replay."""
        fixed = torch.as_tensor(position, device=self.device)
        self._replay("load", {"slots": (slots, -1), "position": (fixed, 0)}, state)

    def reset(self, slots: Tensor) -> None:
        """By replay."""
        self._replay("reset", {"slots": (slots, -1)})

    def copy(self, source: Tensor, target: Tensor) -> None:
        """By replay."""
        self._replay("copy", {"source": (source, -1), "target": (target, -1)})

    def materialise(self, source: Tensor, target: Tensor, count: Tensor | None = None) -> None:
        """By replay."""
        counts = {} if count is None else {"count": (count, 0)}
        self._replay("materialise", {"source": (source, -1), "target": (target, -1), **counts})

    def flush(self, slots: Tensor) -> None:
        """By replay."""
        self._replay("flush", {"slots": (slots, -1)})

    def _record_step(self, inputs: TokenInputs, present: dict[str, Tensor]) -> Step[Tensor]:
        fixed = mapped(inputs, lambda x: torch.full_like(x, torch.nan, memory_format=torch.contiguous_format))
        paddings = {"slots": -1, "lengths": 1, "parents": -1, "drain": 0}
        integers = {name: Fixed(tensor, paddings[name]) for name, tensor in present.items()}
        arguments = {name: part.tensor for name, part in integers.items()}
        slots = arguments.pop("slots")
        accepted = Fixed(slots, 0)
        path = Fixed(slots[:, None].expand(-1, inputs.draft), -1)
        verify = record(lambda: self.inner.verify(fixed, slots, **arguments), self.device)
        # Captured at once: they belong to the step that was last run outside a replay.
        commit = record(lambda: self.inner.commit(accepted.tensor), self.device)
        tree = "parents" in present
        commit_path = record(lambda: self.inner.commit_path(path.tensor), self.device) if tree else None
        return Step(fixed, integers, accepted, path, verify, commit, commit_path)

    def _replay(self, name: str, integers: dict[str, tuple[Tensor, int]], state: Tensor | None = None) -> None:
        key = (name, *((part, tuple(tensor.shape)) for part, (tensor, _) in integers.items()))
        if key not in self.calls:
            fixed = {part: Fixed(tensor, padding) for part, (tensor, padding) in integers.items()}
            values = None if state is None else torch.zeros_like(state)
            arguments: dict[str, Tensor] = {part: x.tensor for part, x in fixed.items()}
            if values is not None:
                arguments["state"] = values
            method = getattr(self.inner, name)
            self.calls[key] = fixed, values, record(lambda: method(**arguments), self.device)
        fixed, values, replay = self.calls[key]
        for part, (tensor, _) in integers.items():
            fixed[part].set(tensor)
        if values is not None and state is not None:
            values.copy_(state)
        replay()


@dataclass(frozen=True)
class GraphSubject:
    """A subject whose states run through graphs."""

    inner: Subject

    @property
    def name(self) -> str:
        """The subject's."""
        return f"{self.inner.name} in CUDA graphs"

    @property
    def capability(self) -> Capability:
        """The subject's."""
        return self.inner.capability

    @property
    def features(self) -> frozenset[Feature]:
        """The subject's, less checks."""
        return self.inner.features - {Feature.CHECKS}

    @property
    def device(self) -> torch.device:
        """The subject's."""
        return self.inner.device

    @property
    def dims(self) -> Dims:
        """The subject's."""
        return self.inner.dims

    @property
    def batches(self) -> tuple[int, ...]:
        """The subject's."""
        return self.inner.batches

    @property
    def gaps(self) -> Path | None:
        """The subject's."""
        return self.inner.gaps

    def operand(self, activation: torch.dtype) -> torch.dtype:
        """The subject's."""
        return self.inner.operand(activation)

    def row(self, slot: int) -> int:
        """The subject's."""
        return self.inner.row(slot)

    def make(self, layout: StateLayout, options: StateOptions) -> GraphState:
        """A state whose calls are captured; no value is checked, as no check could be."""
        return GraphState(self.inner.make(layout, replace(options, check_inputs=False)), self.device)
