"""`ReplaySSMState`: what a generation C or D cache manager holds as its model's recurrent state.

It borrows views of the engine's pools until `shutdown`, holds no manager, and answers the manager's calls: bind, reset,
relocate, update after acceptance, transfer, layer caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from replayssm import LayerKind, StateLayout, StepError, TokenInputs, UnsupportedError
from replayssm.cursors import PAD_SLOT
from replayssm_trtllm.config import ReplaySSMConfig
from replayssm_trtllm.kinds import GDN, layer_layout, recurrence
from replayssm_trtllm.rings import ReplayLayers, scratch_bytes

SEED_STEP = 0x9E3779B97F4A7C15
SEED_MASK = (1 << 62) - 1


class ReplaySSMState:
    """Rings beside the engine's recurrent states, with the engine's names and arguments.

    Args:
        config: as the rank received it.
        kind: of the recurrent layers.
        payload: the engine's class of a layer cache with `conv`, `temporal` and `intermediate_conv_window`.
        metadata: the engine's class of replay metadata.
    """

    uses_replay = True
    intermediate_ssm: Tensor | None = None
    rand_seed: Tensor | None = None
    """Of TensorRT-LLM's own rounding, which the plugin does not use."""

    def __init__(
        self, config: ReplaySSMConfig, kind: LayerKind, payload: Callable[..., Any], metadata: Callable[..., Any]
    ) -> None:
        self.config, self.kind = config, kind
        self._payload, self._metadata = payload, metadata
        self.layers: ReplayLayers | None = None
        self.intermediate_conv: Tensor | None = None
        self.intermediate_indices: Tensor | None = None
        self._conv_states: tuple[Tensor, ...] = ()
        self._layer_ids: tuple[int, ...] = ()
        self._buffer_index: Tensor | None = None
        self._standard = False
        self._contexts: int | None = None
        self._dummies: Tensor | None = None

    def layout(self, context: Any) -> StateLayout:  # noqa: ANN401  the engine's layout
        """The core's layout of one layer, with one slot until the pool's size is known."""
        return layer_layout(
            self.config,
            recurrence(self.kind, tuple(context.ssm_state_shape), context.n_groups_per_rank),
            slots=context.slot_capacity or 1,
            tokens=tokens_of(context.spec_config),
            state_dtype=context.ssm_state_dtype,
            activation=context.conv_state_dtype,
        )

    def validate(self, context: Any) -> None:  # noqa: ANN401
        """Check everything that is known before the pool is made.

        Raises:
            InputError, UnsupportedError: the reason.
        """
        if not context.mamba_pp_layers:
            return
        if context.stochastic_rounding:
            raise UnsupportedError(
                "kv_cache_config.mamba_ssm_stochastic_rounding is TensorRT-LLM's own; set stochastic_rounding in "
                "ReplaySSMConfig instead"
            )
        if context.spec_config is None and not self.config.decode:
            raise UnsupportedError("nothing to replay: no speculation and decode=False; set decode=True")
        self.layout(context)

    def bytes_per_slot(self, context: Any, layer_id: int) -> int:  # noqa: ANN401, ARG002  the engine's signature
        """Bytes of one slot in one layer beside the engine's own state."""
        return scratch_bytes(self.layout(context))

    def bind(self, context: Any, ssm_states: Sequence[Tensor], conv_states: Sequence[Tensor]) -> None:  # noqa: ANN401
        """Borrow the pool's views and allocate rings; a rank without recurrent layers keeps nothing.

        Args:
            ssm_states: `[slots, H, V, K]` a layer. conv_states: `[slots, channels, width − 1]` a layer.
        """
        if not context.mamba_pp_layers:
            return
        self._layer_ids = tuple(context.mamba_pp_layers)
        self._conv_states = tuple(conv_states)
        device = ssm_states[0].device
        seeds = [
            (self.config.seed + context.seed_rank_offset + (layer + 1) * SEED_STEP) & SEED_MASK
            for layer in self._layer_ids
        ]
        self.layers = ReplayLayers(self.layout(context), ssm_states, self.config.resolved_backend, seeds)
        if context.spec_config is None:
            return
        tokens, rows = tokens_of(context.spec_config), context.max_batch_size
        shape = (len(self._layer_ids), rows, tokens, *context.conv_state_shape)
        self.intermediate_conv = torch.zeros(shape, dtype=context.conv_state_dtype, device=device)
        self.intermediate_indices = torch.arange(rows, dtype=torch.int32, device=device)
        self._buffer_index = torch.zeros(self.layers.layout.slots, dtype=torch.int32, device=device)

    def attach(self, constants: dict[int, Tensor | None]) -> None:
        """Give the layers their constants, by global layer number, once the weights are there.

        Raises:
            UnsupportedError: a recurrent layer of the cache that the model did not name.
        """
        missing = [layer for layer in self._layer_ids if layer not in constants]
        if missing:
            raise UnsupportedError(f"recurrent layers {missing} of the cache have no rerouted mixer in the model")
        self._bound().attach([constants[layer] for layer in self._layer_ids])

    @property
    def ready(self) -> bool:
        """Whether steps can run: attached, or without local layers."""
        return self.layers is None or self.layers.attached

    # One forward.

    def check_accepted(self) -> None:
        """See `ReplayLayers.check_accepted`."""
        if self.layers is not None:
            self.layers.check_accepted()

    def begin(self, contexts: int, dummies: Tensor | None) -> None:
        """A forward begins: its batch has so many context rows first; `dummies [rows]` marks rows of padding."""
        if self.layers is None:
            return
        # What the last forward left open is rejected: a warm-up, a capture that was thrown away.
        self.layers.forget()
        self._contexts, self._dummies, self._standard = contexts, dummies, False

    def step(self, layer_id: int, inputs: TokenInputs, slots: Tensor, *, standard: bool) -> Tensor:
        """The generation rows of one layer: `slots [B]` int32 → outputs `[B, T, H, V]`; rows of padding come out as 0.

        Args:
            standard: whether the engine decodes one accepted token a row, rather than verifying drafts.

        Raises:
            StepError: outside of a forward.
            UnsupportedError: a layer that is not of this cache.
        """
        if self._contexts is None:
            raise StepError("a recurrent layer runs outside of a forward that the plugin's model class opened")
        if layer_id not in self._layer_ids:
            raise UnsupportedError(f"recurrent layer {layer_id} is not of this cache; a drafter's own are not served")
        rows = slots.long()
        if self._dummies is not None:
            dummy = self._dummies[self._contexts : self._contexts + len(rows)]
            rows = torch.where(dummy, PAD_SLOT, rows)
        self._standard = standard
        return self._bound().step(self._layer_ids.index(layer_id), inputs, rows)

    def finish(self, context_slots: Tensor) -> None:
        """A forward ended: tokens of ordinary decode are accepted, contexts `[n]` have new states."""
        layers = self.layers
        if layers is None:
            return
        if self._standard and layers.awaits_commit:
            layers.commit(1)
        layers.restart(context_slots)
        self._contexts = None

    def fail(self) -> None:
        """A forward stopped; see `ReplayLayers.forget`."""
        self._contexts = None
        if self.layers is not None:
            self.layers.forget()

    # What the manager tells.

    def update(self, batch: Any) -> None:  # noqa: ANN401  the engine's acceptance batch
        """Acceptance of a verified step: cursors move, the accepted convolution state is kept. On the device.

        Raises:
            UnsupportedError: a tree's leaf was reported.
        """
        if self.layers is None or not batch.num_generations:
            return
        if self.intermediate_conv is None:
            raise StepError("drafts were verified and the cache was made without speculation")
        self._bound().commit(batch.num_accepted_tokens.to(torch.int64))
        promote(self._conv_states, self.intermediate_conv, batch)

    def reset_slots(self, slots: Tensor, host_slots: Sequence[int]) -> None:  # noqa: ARG002  the engine's signature
        """Slots `[n]` begin anew, or go on with a state that the engine wrote."""
        if self.layers is not None:
            self.layers.restart(slots)

    def relocate_slots(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Live requests changed slots; −1 is a request that was not seen before, whose state the engine wrote."""
        if self.layers is None:
            return
        pairs = [(o, n) for o, n in zip(old, new, strict=True) if o >= 0 and o != n]
        fresh = [n for o, n in zip(old, new, strict=True) if o < 0]
        device = self.layers.device
        if pairs:
            source, target = torch.tensor(pairs, device=device).unbind(1)
            self.layers.relocate(source, target)
        if fresh:
            self.layers.restart(torch.tensor(fresh, device=device))

    def on_transfer(self, slots: Sequence[int]) -> None:
        """States arrived from another server; rings never travel, so the slots start with empty ones."""
        if self.layers is not None and slots:
            self.layers.restart(torch.tensor(sorted(set(slots)), device=self.layers.device))

    def make_layer_cache(self, layer_offset: int, conv: Tensor, temporal: Tensor) -> Any:  # noqa: ANN401
        """The engine's view of one layer."""
        window = None if self.intermediate_conv is None else self.intermediate_conv[layer_offset]
        return self._payload(conv=conv, temporal=temporal, intermediate_conv_window=window)

    def get_replay_metadata(self) -> Any:  # noqa: ANN401
        """What opens the engine's replay path of Gated DeltaNet, where drafts are verified; None for Mamba-2."""
        if self.kind is not GDN or self.layers is None or self._buffer_index is None:
            return None
        return self._metadata(
            prev_num_accepted_tokens=self.layers.cursors.committed,
            cache_buf_idx=self._buffer_index,
            replay_step_width=self.layers.layout.max_draft,
            replay_history_size=self.layers.layout.window,
        )

    def shutdown(self) -> None:
        """Let go of every tensor; twice is once."""
        self.layers = self.intermediate_conv = self.intermediate_indices = self._buffer_index = self._dummies = None
        self._conv_states, self._layer_ids, self._contexts = (), (), None

    def _bound(self) -> ReplayLayers:
        if self.layers is None:
            raise StepError("the state is not bound to a pool, or was shut down")
        return self.layers


def tokens_of(spec_config: Any) -> int:  # noqa: ANN401  the engine's speculative configuration
    """T of a manager: 1 without speculation."""
    return 1 if spec_config is None else int(spec_config.tokens_per_gen_step)


def promote(conv_states: Sequence[Tensor], intermediate: Tensor, batch: Any) -> None:  # noqa: ANN401
    """Keep the convolution state after each row's last accepted token; rows of padding keep theirs.

    Args:
        conv_states: `[slots, channels, width − 1]` a layer.
        intermediate: `[L, rows, T, channels, width − 1]`, the state after each token of the step.
    """
    target = batch.destination_state_indices.long()
    source, position = batch.source_state_indices.long(), batch.accepted_positions.long()
    dummy = batch.is_dummy_request
    for conv, after in zip(conv_states, intermediate, strict=True):
        accepted = after[source, position]
        if dummy is not None:
            accepted = torch.where(dummy[:, None, None], conv[target], accepted)
        conv[target] = accepted
