"""The adapter as a subject of the conformance kit: the state object that a cache manager drives, on pools like the engine's.

`load` is a prefill: the engine writes its pool, and the manager resets the slot. `verify` is a forward that one layer's
mixer steps, through the mixer's own operator where gates are raw; rows of padding are masked as dummy requests name
reserved slots. `commit` is the acceptance that the manager reports. `reset` is a prefill that wrote zeros.

Not declared, as the engine has no words for them: trees, rows of different lengths, rows that must fold, prefixes of the
records, copies of a slot, memory handed in (the checkpoint is the engine's, the rings are not), flush policies. A position
is not part of the engine's reset; the kit's is written beside it. Checks are declared on a CPU: on a GPU the adapter makes
none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from replayssm import StateLayout, TokenInputs, UnsupportedError
from replayssm.capability import CAPABILITIES, DRAFT, STANDARD, Capability
from replayssm.conformance import Dims, Feature
from replayssm.conformance.subject import StateOptions
from replayssm.conformance.undeclared import UndeclaredCalls
from replayssm.cursors import Cursors
from replayssm.layout import Buffers
from replayssm.storage import write_state
from replayssm_trtllm import mixer_gdn, mixer_mamba2
from replayssm_trtllm.config import CHECKPOINTS, ReplaySSMConfig
from replayssm_trtllm.kinds import MAMBA2, SERVED
from replayssm_trtllm.rings import ReplayLayers
from replayssm_trtllm.router import Router
from replayssm_trtllm.state import SEED_MASK, SEED_STEP, ReplaySSMState

CONV_WIDTH, CHANNELS, LAYER = 4, 2, 5
FEATURES = frozenset((Feature.PADDING, Feature.RESET, Feature.MEMORY, Feature.RAW_GATES, Feature.SKIP_AND_GATE))


class PooledState(UndeclaredCalls):
    """One recurrent layer behind a `ReplaySSMState`.

    Args:
        layout: geometry, window and precision.
        options: see `StateOptions`.
        backend: the core's.
        device: of the pool.
    """

    def __init__(self, layout: StateLayout, options: StateOptions, backend: str, device: torch.device) -> None:
        recurrence, precision = layout.recurrence, layout.precision
        if precision.checkpoint not in CHECKPOINTS.values() or not precision.exact_fold:
            raise UnsupportedError(
                f"{precision.describe()}, exact_fold={precision.exact_fold}: no such state in TensorRT-LLM"
            )
        state_dtype = {name: dtype for dtype, name in CHECKPOINTS.items()}[precision.checkpoint]
        config = ReplaySSMConfig(
            mode="plugin",
            window=layout.window,
            decode=True,
            read_copy=precision.read_copy or "none",
            checkpoint_dtype=state_dtype,
            stochastic_rounding=precision.stochastic_rounding,
            # The rank makes a seed a layer; this is the one whose layer's seed is the kit's.
            seed=(options.seed - (LAYER + 1) * SEED_STEP) & SEED_MASK,
            backend=backend,
        )
        # The engine's pages hold the layers of a slot side by side: twice the slot's own stride.
        pages = torch.zeros(layout.slots, 2, *recurrence.state_shape, dtype=getattr(torch, state_dtype), device=device)
        self._pool = pages[:, 1]
        self._conv = torch.zeros(layout.slots, CHANNELS, CONV_WIDTH - 1, dtype=layout.activation, device=device)
        self._context = SimpleNamespace(
            mamba_pp_layers=(LAYER,),
            ssm_state_shape=recurrence.state_shape,
            conv_state_shape=(CHANNELS, CONV_WIDTH - 1),
            ssm_state_dtype=self._pool.dtype,
            conv_state_dtype=layout.activation,
            n_groups_per_rank=recurrence.groups,
            max_batch_size=256,
            slot_capacity=layout.slots,
            spec_config=SimpleNamespace(tokens_per_gen_step=layout.max_draft),
            stochastic_rounding=False,
            seed_rank_offset=0,
        )
        self._state = ReplaySSMState(config, recurrence.kind, SimpleNamespace, SimpleNamespace)
        self._state.validate(self._context)
        self._state.bind(self._context, [self._pool], [self._conv])
        self._state.attach({LAYER: options.A})
        self._layout, self._A, self._device, self._seed = layout, options.A, device, options.seed
        self._router = Router(recurrence.kind, {LAYER: lambda: options.A})
        self._mixer = self._make_mixer()
        self._step: Tensor | None = None
        self._drafted = 0
        if self._layers.layout != layout:
            raise UnsupportedError(f"the adapter's layout is {self._layers.layout}; the case wants {layout}")

    @property
    def buffers(self) -> Buffers:
        """Name → tensor."""
        return self._layers.buffers[0]

    @property
    def cursors(self) -> Cursors:
        """The cursors that all layers share."""
        return self._layers.cursors

    def reset(self, slots: Tensor) -> None:
        """See `ReplayState.reset`."""
        self.load(slots, torch.zeros(len(slots), *self._layout.recurrence.state_shape, device=self._device))

    def load(self, slots: Tensor, state: Tensor, position: Tensor | int = 0) -> None:
        """See `ReplayState.load`."""
        self._prefill(slots, state)
        self.cursors.position[slots] = torch.as_tensor(position, dtype=torch.int32, device=self._device)

    def verify(
        self,
        inputs: TokenInputs,
        slots: Tensor,
        lengths: Tensor | None = None,
        parents: Tensor | None = None,
        drain: Tensor | None = None,
    ) -> Tensor:
        """See `ReplayState.verify`."""
        if lengths is not None or parents is not None or drain is not None:
            raise UnsupportedError("a forward has the same number of tokens in each row, no tree, and no forced rows")
        self._step, self._drafted = slots, inputs.draft
        # Padding names a reserved slot, which here is one that the mask keeps out of reach.
        self._state.begin(0, slots < 0)
        self._router.enter(self._state)
        rows = slots.clamp(min=0).to(torch.int32)
        try:
            out = self._mixed(inputs, rows) if inputs.raw is not None else self._direct(inputs, rows)
        finally:
            self._router.leave()
        self._state.finish(slots[:0])
        return out

    def commit(self, accepted: Tensor) -> None:
        """See `ReplayState.commit`."""
        assert self._step is not None
        rows = len(self._step)
        indices = self._step.clamp(min=0)
        batch = SimpleNamespace(
            num_generations=rows if self._layers.awaits_commit else 0,
            num_accepted_tokens=accepted.to(torch.int32),
            # An engine's sampler never names a token that was not drafted, however wrong a count is.
            accepted_positions=(accepted - 1).clamp(0, self._drafted - 1),
            source_state_indices=torch.arange(rows, device=self._device),
            destination_state_indices=indices,
            is_dummy_request=self._step < 0,
        )
        self._state.update(batch)

    def state(self, slots: Tensor, count: Tensor | None = None) -> Tensor:
        """See `ReplayState.state`."""
        if count is not None:
            raise UnsupportedError("the engine asks for no state after a prefix of the records")
        return self._layers.state(0, slots)

    def _prefill(self, slots: Tensor, state: Tensor) -> None:
        """The engine's write of its pool, rounded as the kit rounds a loaded state, and the manager's reset.

        Of a rounded state the adapter's read copy is a copy of what was stored; the kit's is of the unrounded state, which
        no cache manager ever sees, and is put in its place.
        """
        exact = state.to(self._layout.compute_dtype)
        seed = torch.tensor([self._seed], dtype=torch.int64, device=self._device)
        first = torch.zeros_like(slots, dtype=torch.int32)
        write_state(self._layout, self.buffers, slots, exact, first, seed)
        self._state.reset_slots(slots, slots.tolist())
        if self._layout.precision.checkpoint not in ("fp32", "fp64"):
            write_state(self._layout, self.buffers, slots, exact, first, seed)

    @property
    def _layers(self) -> ReplayLayers:
        layers = self._state.layers
        assert layers is not None
        return layers

    def _direct(self, inputs: TokenInputs, rows: Tensor) -> Tensor:
        out: Tensor = self._router.step(LAYER, inputs, rows, standard=False)
        return out

    def _make_mixer(self) -> Any:  # noqa: ANN401  the engine's module
        mixer = SimpleNamespace(layer_idx=LAYER, A_log=None, dt_bias=None, forward_decode=None, forward_extend=None)
        reroute = mixer_mamba2.reroute if self._layout.recurrence.kind is MAMBA2 else mixer_gdn.reroute
        reroute(mixer, self._router)
        return mixer

    def _mixed(self, inputs: TokenInputs, rows: Tensor) -> Tensor:
        """Raw projections through the mixer's operator, expanded as the engine expands them."""
        raw, geometry = inputs.raw, self._layout.recurrence
        assert raw is not None
        if geometry.kind is not MAMBA2:
            self._mixer.A_log, self._mixer.dt_bias = raw.A_log, raw.dt_bias
            out: Tensor = self._mixer._replay_verify_recurrent(
                inputs.q,
                inputs.k,
                inputs.v,
                inputs.gate,
                inputs.beta,
                self._pool,
                rows,
                len(rows),
                inputs.draft,
                None,
                None,
            )
            return out
        assert raw.dt_bias is not None
        assert self._A is not None
        dim, keys = geometry.value_dim, geometry.key_dim
        operator = getattr(self._mixer, mixer_mamba2.ATTRIBUTE)
        result: Tensor = operator(
            self._pool,
            inputs.v,
            inputs.gate[..., None].expand(*inputs.gate.shape, dim),
            self._A[:, None, None].expand(-1, dim, keys),
            inputs.k,
            inputs.q,
            None if inputs.D is None else inputs.D[:, None].expand(-1, dim),
            z=inputs.z,
            dt_bias=raw.dt_bias[:, None].expand(-1, dim),
            dt_softplus=True,
            state_batch_indices=rows,
            out=torch.empty_like(inputs.v),
        )
        return result


@dataclass(frozen=True)
class TrtllmSubject:
    """The TensorRT-LLM adapter's state over one of the core's backends.

    Args:
        rounds_to: dtype that the backend rounds operands of output products to, see `CoreSubject`.
    """

    backend: str = "torch"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dims: Dims = Dims()
    batches: tuple[int, ...] = (1, 2, 3, 16, 17, 33)
    gaps: Path | None = Path(__file__).with_name("gaps.txt")
    rounds_to: torch.dtype | None = None

    @property
    def name(self) -> str:
        """For reports."""
        return f"trtllm-{self.backend}"

    @property
    def features(self) -> frozenset[Feature]:
        """Parts of the protocol served."""
        return FEATURES | {Feature.CHECKS} if self.device.type == "cpu" else FEATURES

    @property
    def capability(self) -> Capability:
        """What the adapter serves with its backend."""
        row = CAPABILITIES[self.backend]
        return replace(
            row,
            backend=self.name,
            layers=SERVED,
            modes=(STANDARD, DRAFT),
            checkpoints=tuple(name for name in CHECKPOINTS.values() if name in row.checkpoints),
            graph_capture=False,
        )

    def operand(self, activation: torch.dtype) -> torch.dtype:
        """See `Subject.operand`."""
        return self.rounds_to or (torch.float64 if activation == torch.float64 else torch.float32)

    def row(self, slot: int) -> int:
        """The pool's slots are the kit's."""
        return slot

    def make(self, layout: StateLayout, options: StateOptions) -> PooledState:
        """See `Subject.make`."""
        return PooledState(layout, options, self.backend, self.device)
