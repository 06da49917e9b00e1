"""The adapter as a subject of the conformance kit.

Each slot of the kit is a cache layer of transformers with a batch of one. A crop removes the same number of tokens from
every row of a cache, and assisted decoding, which crops, runs one row; sequences that accept different counts are caches
of their own. Rows of different lengths come with that.

Not declared, as transformers has no words for them: draft trees, padded rows, rows that must fold, prefixes of the records,
memory handed in or visible, flush policies (slots share no cache, and a cache that is taken over has no position), raw
gates (GDN and KDA process theirs before the operator, Mamba-2 takes dt as it is), and checks of slots and counts (a call
names no slot, and a crop says what goes).
"""

from __future__ import annotations

import weakref
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from replayssm import ReplayConfig, StateLayout, TokenInputs, UnsupportedError
from replayssm.capability import CAPABILITIES, DRAFT, STANDARD, Capability
from replayssm.conformance import Dims, Feature
from replayssm.conformance.inputs import select
from replayssm.conformance.subject import StateOptions
from replayssm.conformance.undeclared import UndeclaredCalls
from replayssm_transformers.layer import STATE, ReplayLayer, adopt
from replayssm_transformers.meter import ModelMeter
from replayssm_transformers.mixer_call import CONV_WIDTH, MixerCall
from replayssm_transformers.operators import swap_state
from replayssm_transformers.session import Session
from replayssm_transformers.table import FAMILIES, Family
from replayssm_transformers.tokens import slice_tokens

BACKEND = "torch"
FAMILY_OF = {family.kind: family for family in reversed(FAMILIES)}
"""Layer kind → the first family of the table that has it."""


class OwnerOfCaches(Session):
    """What a cache layer needs of a session; no model stands behind it."""

    def __init__(self, config: ReplayConfig) -> None:
        self.config, self.meter = config, ModelMeter()
        self.layers_alive: weakref.WeakSet[ReplayLayer] = weakref.WeakSet()


class CacheState(UndeclaredCalls):
    """A converted cache layer for each slot.

    `load` is a cache that an ordinary prefill left and the adapter takes over, `verify` the call of the modelling module's
    operator that the mixer would make, `commit` a crop, `state` what an ordinary layer holds once the adapter lets go of it,
    `flush` that and a new take-over (disable and enable), `copy` a copied cache, `reset` a reset one.

    Args:
        family: whose operators are called.
        layout: geometry, window and precision.
        options: see `StateOptions`.
        one_by_one: whether the tokens of a step come in one call, or in a call each as an assistant drafts them.
    """

    def __init__(self, family: Family, layout: StateLayout, options: StateOptions, one_by_one: bool) -> None:
        config = ReplayConfig(
            window=layout.window,
            max_draft=layout.max_draft,
            precision=layout.precision,
            backend=BACKEND,
            check_inputs="always" if options.check_inputs else "never",
            seed=options.seed,
        )
        self.family, self.layout, self.one_by_one = family, layout, one_by_one
        self._owner = OwnerOfCaches(config)
        self._call = MixerCall(family, layout, options.A)
        self._layers: dict[int, ReplayLayer] = {}
        self._step: list[int] = []
        self._awaiting: dict[int, int] = {}

    def reset(self, slots: Tensor) -> None:
        """See `ReplayState.reset`."""
        for slot in slots.tolist():
            self._awaiting.pop(slot, None)
            layer = self._layers.get(slot)
            self._layers[slot] = self._adopted(LinearAttentionLayer()) if layer is None else layer
            self._layers[slot].reset()

    def load(self, slots: Tensor, state: Tensor, position: Tensor | int = 0) -> None:  # noqa: ARG002  transformers' own
        """See `ReplayState.load`."""
        geometry = self.layout.recurrence
        for slot, matrix in zip(slots.tolist(), state, strict=True):
            layer = LinearAttentionLayer()
            layer.update_conv_state(matrix.new_zeros(1, geometry.heads * geometry.value_dim, CONV_WIDTH))
            layer.update_recurrent_state(swap_state(self.family.kind, matrix[None]).contiguous())
            self._layers[slot] = self._adopted(layer)
            self._awaiting.pop(slot, None)

    def verify(
        self,
        inputs: TokenInputs,
        slots: Tensor,
        lengths: Tensor | None = None,
        parents: Tensor | None = None,
        drain: Tensor | None = None,
    ) -> Tensor:
        """See `ReplayState.verify`."""
        if parents is not None or drain is not None:
            raise UnsupportedError("operators of transformers take neither a draft tree nor rows that must fold")
        self._reject(list(self._awaiting))
        self._step = slots.tolist()
        counts = [inputs.draft] * len(slots) if lengths is None else lengths.tolist()
        out = torch.zeros_like(inputs.v)
        for row, (slot, count) in enumerate(zip(self._step, counts, strict=True)):
            tokens = select(inputs, slice(row, row + 1), slice(count))
            out[row, :count] = self._present(self._layers[slot], tokens)[0]
            self._awaiting[slot] = count
        return out

    def commit(self, accepted: Tensor) -> None:
        """See `ReplayState.commit`."""
        for slot, count in zip(self._step, accepted.tolist(), strict=True):
            if slot in self._awaiting:
                self._layers[slot].crop(count - self._awaiting.pop(slot))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """See `ReplayState.copy`."""
        for src, dst in zip(source.tolist(), target.tolist(), strict=True):
            self._layers[dst] = self._settled(src)
            self._awaiting.pop(dst, None)

    def flush(self, slots: Tensor) -> None:
        """See `ReplayState.flush`."""
        for slot in slots.tolist():
            self._reject([slot])
            self._layers[slot].release()
            self._layers[slot] = self._adopted(self._layers[slot])

    def state(self, slots: Tensor, count: Tensor | None = None) -> Tensor:
        """See `ReplayState.state`."""
        if count is not None:
            raise UnsupportedError("a cache of transformers has no state after a prefix of the records")
        return torch.cat([self._read(slot) for slot in slots.tolist()])

    def _present(self, layer: ReplayLayer, tokens: TokenInputs) -> Tensor:
        """Tokens `[1, T, …]` of one sequence → outputs `[1, T, H, V]`."""
        length = 1 if self.one_by_one else tokens.draft
        pieces = [slice_tokens(tokens, start, start + length) for start in range(0, tokens.draft, length)]
        return torch.cat([self._call.run(layer, piece) for piece in pieces], dim=1)

    def _read(self, slot: int) -> Tensor:
        layer = self._settled(slot)
        layer.release()
        return swap_state(self.family.kind, layer.recurrent_states[STATE])

    def _settled(self, slot: int) -> ReplayLayer:
        """A copy of a slot's layer without the tokens that await acceptance."""
        layer = deepcopy(self._layers[slot])
        layer.crop(-self._awaiting.get(slot, 0))
        return layer

    def _reject(self, slots: list[int]) -> None:
        """A step that was left without commit never happened: its tokens are cropped."""
        for slot in slots:
            self._layers[slot].crop(-self._awaiting.pop(slot, 0))

    def _adopted(self, layer: Any) -> ReplayLayer:  # noqa: ANN401  transformers is untyped
        layer.activate_past_recording()
        return adopt(layer, self._owner, self.family.kind)


@dataclass(frozen=True)
class TransformersSubject:
    """The adapter on a device, over the torch backend.

    Args:
        one_by_one: see `CacheState`. The tokens before the one that fills the window have then been read from the read
            copy or a rounded checkpoint already, where the kit's step reads the folded state; so only fp32 is declared.
    """

    one_by_one: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    features: frozenset[Feature] = frozenset(
        {Feature.LENGTHS, Feature.RESET, Feature.COPY, Feature.FLUSH, Feature.SKIP_AND_GATE}
    )
    dims: Dims = Dims()
    batches: tuple[int, ...] = (1, 2, 7)
    gaps: Path | None = None

    @property
    def name(self) -> str:
        """For reports."""
        return "transformers, drafts one by one" if self.one_by_one else "transformers"

    @property
    def capability(self) -> Capability:
        """The torch backend's, less draft trees and what no model of transformers computes in."""
        row = replace(
            CAPABILITIES[BACKEND],
            backend="transformers",
            modes=(STANDARD, DRAFT),
            activations=(torch.bfloat16, torch.float16, torch.float32),
        )
        return replace(row, checkpoints=("fp32",), read_copies=(None,)) if self.one_by_one else row

    def operand(self, activation: torch.dtype) -> torch.dtype:  # noqa: ARG002  all are upcast
        """See `Subject.operand`."""
        return torch.float32

    def row(self, slot: int) -> int:  # noqa: ARG002  each slot is a cache of its own
        """The only row of its cache."""
        return 0

    def make(self, layout: StateLayout, options: StateOptions) -> CacheState:
        """See `Subject.make`."""
        if options.buffers is not None:
            raise UnsupportedError("transformers allocates its caches itself; buffers cannot be handed in")
        row, precision = self.capability, layout.precision
        if precision.checkpoint not in row.checkpoints or precision.read_copy not in row.read_copies:
            raise UnsupportedError(f"{self.name} does not declare a {precision.describe()}")
        return CacheState(FAMILY_OF[layout.recurrence.kind], layout, options, self.one_by_one)
