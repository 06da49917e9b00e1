"""The one object of a scheduler process: configuration, layout, memory and layers of its model."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from replayssm import Recurrence, ReplayConfig, ReplayLayers, ReplayState, StateLayout, UnsupportedError
from replayssm.capability import DRAFT, STANDARD, TREE, supports
from replayssm.cursors import Cursors
from replayssm.traffic import TrafficMeter
from replayssm_sglang.facts import ModelFacts, state_dtype
from replayssm_sglang.steps import Steps


@dataclass
class Session:
    """What this process serves.

    Attributes:
        config: as asked for.
        draft: T, tokens of a verify step; 1 without speculation.
        tree: whether drafts are trees.
        metrics: whether SGLang exports metrics, and we with it.
        running_requests: most requests that decode at once, 0 when SGLang decides.
        path: `[B, P]` accepted path of each row of the step being committed, None for chains.
        facts: set once the model is known, before its weights load.
        states: `[layers, slots, H, V, K]`, the checkpoints, once the pool stands.
        rings: name → `[layers, slots, …]`, every other buffer of the layout.
    """

    config: ReplayConfig
    draft: int = 1
    tree: bool = False
    metrics: bool = False
    running_requests: int = 0
    path: Tensor | None = None
    facts: ModelFacts | None = None
    states: Tensor | None = None
    rings: dict[str, Tensor] = field(default_factory=dict)
    _steps: Steps | None = None
    _homes: dict[int, int] = field(default_factory=dict)

    @property
    def recurrence(self) -> Recurrence:
        """Geometry of the layers."""
        return self._facts.recurrence

    @property
    def layers(self) -> ReplayLayers:
        """All recurrent layers of this rank."""
        return self.steps.layers

    @property
    def steps(self) -> Steps:
        """The step driver.

        Raises:
            UnsupportedError: SGLang runs a layer before its backend was made.
        """
        if self._steps is None:
            raise UnsupportedError("a recurrent layer ran before the attention backend was made; please report it")
        return self._steps

    @property
    def ready(self) -> bool:
        """Whether the layers stand."""
        return self._steps is not None

    def backend(self, device: torch.device) -> str:
        """Name of the core's backend for a device: the one that CUDA graphs can capture, and torch on CPU."""
        if self.config.backend != "auto":
            return self.config.backend
        return "triton" if device.type == "cuda" else "torch"

    def layout(self, slots: int) -> StateLayout:
        """Buffers for a pool of `slots`."""
        return StateLayout(
            self.recurrence,
            slots,
            window=self.config.window,
            max_draft=self.draft,
            precision=self.config.policy,
            activation=self._facts.activation,
        )

    def check(self, device: torch.device) -> None:
        """That the core serves these layers, in these modes, on the device.

        Raises:
            UnsupportedError: it does not; the reason says what would work.
        """
        state_dtype(self.config.policy)
        layout, name = self.layout(slots=1), self.backend(device)
        for mode in (STANDARD, *((TREE if self.tree else DRAFT,) if self.draft > 1 else ())):
            ok, reason = supports(name, layout, device, mode)
            if not ok:
                raise UnsupportedError(reason)

    def place(self, states: Tensor, rings: dict[str, Tensor]) -> None:
        """Take the pool's memory.

        Raises:
            UnsupportedError: there is a pool already.
        """
        if self.states is not None:
            raise UnsupportedError(
                "a second pool of recurrent states in one process is not served (a draft model's own)"
            )
        self.states, self.rings = states, rings
        self._homes = {states[i].data_ptr(): i for i in range(len(states))}

    def layer_of(self, state: Tensor) -> int:
        """Number of the layer whose states `[slots, H, V, K]` these are, by address.

        Raises:
            UnsupportedError: no layer's.
        """
        index = self._homes.get(state.data_ptr())
        if index is None:
            raise UnsupportedError("a recurrent layer was called with a state that is not the pool's")
        return index

    def build(self, decay_rates: list[Tensor] | None) -> None:
        """Make the layers on the pool's memory.

        Args:
            decay_rates: A `[H]` of each layer, Mamba-2 only.

        An attention backend of each phase calls it, and they share the layers.
        """
        if self.ready:
            return
        assert self.states is not None, "the pool comes before the attention backend"
        device, layout = self.states.device, self.layout(self.states.shape[1])
        made: list[ReplayState] = []
        cursors: Cursors | None = None
        for i, state in enumerate(self.states):
            buffers = {"checkpoint": state, **{name: ring[i] for name, ring in self.rings.items()}}
            layer = ReplayState(
                layout,
                A=None if decay_rates is None else decay_rates[i],
                backend=self.backend(device),
                flush=self.config.flush if cursors is None else None,
                device=device,
                buffers=buffers,
                cursors=cursors,
                # Only on request: what one request brings must not stop the server for all.
                check_inputs=self.config.check_inputs == "always",
                seed=self.config.seed,
            )
            cursors = layer.cursors
            made.append(layer)
        self._steps = Steps(ReplayLayers(made, TrafficMeter() if self.metrics else None))

    @property
    def _facts(self) -> ModelFacts:
        assert self.facts is not None, "the model comes first"
        return self.facts
