"""A cache layer of transformers, converted in place: its recurrent state is a `ReplayHandle`.

The convolution states and the attention part of combined layers stay what they were. Conversion keeps the object, so a
cache that the caller holds is the cache that is served.
"""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import cache_utils

from replayssm import InputError, LayerKind, ReplayConfig, ReplaySSMError, UnsupportedError
from replayssm_transformers.active import cache_layers, current
from replayssm_transformers.handle import ReplayHandle
from replayssm_transformers.operators import Call, swap_state
from replayssm_transformers.surface import CACHE_LAYERS

if TYPE_CHECKING:
    from replayssm_transformers.session import Session

# 2^64 divided by the golden ratio: seeds of neighbouring layers share no pattern.
_WEYL = 0x9E3779B97F4A7C15

STATE = 0
"""Index of the one recurrent state that the served layers have."""

# What the core says of its own part, which is not the whole.
_NO_CHANGE = re.compile(r", (nothing|no slot) was changed")

BROKEN = "the cache holds part of a refused step; start again from the prompt, with a new cache"

SERVED = tuple(getattr(cache_utils, name) for name in CACHE_LAYERS)


class ReplayLayer(cache_utils.LinearAttentionLayer):
    """Goes in front of a cache layer's own class, which is this base or a subclass that adds attention.

    Attributes:
        session: the enabled model that the layer belongs to.
        kind: recurrence of the layer.
        index: number of the layer in its model.
        handle: the replay state, None before the first token.
        broken: whether a step was refused halfway, after some layers of the cache took its tokens; until `reset`.
        ordinary: the class that the layer had.
    """

    session: Session
    kind: LayerKind
    index: int
    handle: ReplayHandle | None
    broken: bool
    ordinary: type
    recurrent_states: dict[int, Any]
    conv_kernel_size: dict[int, Any]
    is_compileable = False
    # Makes transformers leave the generated class out of its registry of layer types.
    _layer_type = None

    @property
    def is_croppable(self) -> bool:
        """A crop moves a cursor."""
        return True

    def serve(self, call: Call) -> Any:  # noqa: ANN401  what the operator returns
        """Run one operator call on this layer's state."""
        initial = None
        handle = self.handle
        if handle is None:
            handle = ReplayHandle(_seeded(self.session.config, self.index), self.session.meter)
            if self.is_recurrent_states_initialized[STATE]:
                initial = swap_state(self.kind, self.recurrent_states[STATE])
        result = handle.run(call, initial, self.record_past)
        self.handle = self.recurrent_states[STATE] = handle
        self.is_recurrent_states_initialized[STATE] = True
        return result

    def refuse_step(self, error: ReplaySSMError) -> None:
        """A step is refused in this layer: those before it have taken its tokens, so the whole cache is given up.

        The error's message is completed. A layer that stands alone keeps its state, and nothing is marked.
        """
        layers = [layer for layer in cache_layers() if isinstance(layer, ReplayLayer)]
        for layer in layers:
            layer.broken = True
        if layers:
            error.args = (f"{_NO_CHANGE.sub('', str(error))}; {BROKEN}",)

    def check_whole(self) -> None:
        """Whether all layers of the cache have taken the same tokens.

        Raises:
            InputError: a step was refused halfway.
        """
        if self.broken:
            raise InputError(BROKEN)

    def check_rows(self, rows: int) -> None:
        """Whether a batch has as many rows as the state.

        Raises:
            InputError: it has not; nothing was changed.
        """
        if self.handle is not None:
            self.handle.check_rows(rows)

    def update_recurrent_state(self, recurrent_states: Any, state_idx: int = STATE, **kwargs: Any) -> Any:  # noqa: ANN401
        """The mixer hands back what the operator returned; a tensor from elsewhere replaces the state.

        Raises:
            UnsupportedError: the mixer computed a state itself, so its operator was not the replaced one.
        """
        if recurrent_states is self.handle and self.handle is not None:
            return recurrent_states
        if current() is self:
            error = UnsupportedError(
                "the model's own kernel computed the state in place of the replaced operator; load it without use_kernels"
            )
            self.refuse_step(error)
            raise error
        self._drop()
        return super().update_recurrent_state(recurrent_states, state_idx, **kwargs)

    def update_conv_state(
        self,
        conv_states: Tensor,
        state_idx: int = STATE,
        conv_kernel_size: int | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Tensor:
        """As the parent, but a recorded past stays as long as a crop can use it, and no longer."""
        past = self.conv_states[state_idx]
        if self.record_past and past is not None:
            reach = self.conv_kernel_size[state_idx] + self.session.config.max_draft
            self.conv_states[state_idx] = past[..., -reach:]
        return super().update_conv_state(conv_states, state_idx, conv_kernel_size, **kwargs)

    def check_crop(self, tokens_to_remove: int) -> None:
        """Whether `crop` would go through.

        Raises:
            InputError: see `crop`.
        """
        self.check_whole()
        if tokens_to_remove > 0:
            raise InputError(f"crop({tokens_to_remove}) would keep a length; give minus the number of tokens to remove")
        if self._is_empty:
            return
        if not self.record_past:
            raise InputError(
                f"crop({tokens_to_remove}) of a cache that does not record its past; "
                "call cache.activate_past_recording() before the step"
            )
        if self.handle is not None:
            self.handle.check_crop(abs(tokens_to_remove))

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` tokens.

        Raises:
            InputError: a positive number, more tokens than await acceptance, a past that is not recorded, or a step
                that was refused halfway; nothing was changed.
        """
        self.check_crop(tokens_to_remove)
        if self._is_empty:
            return
        super().crop(tokens_to_remove)
        if self.handle is not None:
            self.handle.crop(abs(tokens_to_remove))

    def reset(self) -> None:
        """Forget everything; the next prompt starts from nothing."""
        self.broken = False
        self._drop()
        super().reset()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the given rows of the batch."""
        self.check_whole()
        parent = getattr(super(), "batch_select_indices", None)
        if parent is not None:
            parent(indices)
        for idx, states in self.conv_states.items():
            if states is not None:
                self.conv_states[idx] = states[indices]
        if self.handle is not None:
            self.handle.select(torch.as_tensor(indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        self.check_whole()
        parent = getattr(super(), "batch_repeat_interleave", None)
        if parent is not None:
            parent(repeats)
        for idx, states in self.conv_states.items():
            if states is not None:
                self.conv_states[idx] = states.repeat_interleave(repeats, dim=0)
        if self.handle is not None:
            self.handle.select(self.handle.slots.repeat_interleave(repeats))

    def reorder_cache(self, beam_idx: Tensor) -> None:  # noqa: ARG002  transformers' signature
        """Refused: beam search."""
        raise UnsupportedError("beam search reorders the cache at every step, which replay states do not serve")

    def offload(self) -> None:
        """Refused: offloaded caches."""
        raise UnsupportedError("offloaded caches are not served; use the default dynamic cache")

    def prefetch(self) -> None:
        """Refused: offloaded caches."""
        raise UnsupportedError("offloaded caches are not served; use the default dynamic cache")

    def release(self) -> None:
        """Become an ordinary cache layer again, with all its tokens accepted."""
        handle = self.handle
        self._drop()
        if handle is not None:
            state = swap_state(self.kind, handle.state()).contiguous()
            self.recurrent_states[STATE] = state
            self.is_recurrent_states_initialized[STATE] = True
        del self.session, self.kind, self.handle, self.broken
        self.__class__ = self.ordinary

    @property
    def _is_empty(self) -> bool:
        """Before the first token, and in the empty layers of transformers 5.17: its own crop would fail."""
        return not any(self.is_conv_states_initialized.values())

    def _drop(self) -> None:
        if self.handle is not None:
            self.handle = self.recurrent_states[STATE] = None
            self.is_recurrent_states_initialized[STATE] = False

    def __deepcopy__(self, memo: dict[int, object]) -> ReplayLayer:
        copy = object.__new__(type(self))
        memo[id(self)] = copy
        copy.__dict__.update({name: deepcopy(value, memo) for name, value in self.__dict__.items()})
        self.session.layers_alive.add(copy)
        return copy


def adopt(layer: Any, session: Session, kind: LayerKind, index: int = 0) -> ReplayLayer:  # noqa: ANN401  transformers is untyped
    """The layer as a `ReplayLayer` of this session, converted when it is an ordinary one.

    Args:
        index: number of the layer in its model.

    Raises:
        InputError, UnsupportedError: see `check_layer`.
    """
    check_layer(layer, session)
    if not isinstance(layer, ReplayLayer):
        layer.__class__ = _CONVERTED[type(layer)]
        layer.session, layer.kind, layer.index, layer.handle = session, kind, index, None
        layer.broken = False
        session.layers_alive.add(layer)
    assert isinstance(layer, ReplayLayer)
    return layer


def _seeded(config: ReplayConfig, index: int) -> ReplayConfig:
    """The configuration with a seed of the layer's own: layers must not round their states with the same noise."""
    return replace(config, seed=(config.seed + index * _WEYL) % 2**63)


def check_layer(layer: Any, session: Session) -> None:  # noqa: ANN401  transformers is untyped
    """Whether a cache layer can be served.

    Raises:
        InputError: a step was refused halfway.
        UnsupportedError: a static or foreign layer class, several states, or a cache of another enabled model.
    """
    if isinstance(layer, ReplayLayer):
        if layer.session is not session:
            raise UnsupportedError("the cache belongs to another enabled model; use one cache for each model")
        layer.check_whole()
        return
    if type(layer) not in SERVED:
        raise UnsupportedError(
            f"cache layer {type(layer).__name__} is not served; use the default dynamic cache "
            f"(its layers are {', '.join(CACHE_LAYERS)})"
        )
    if layer.number_of_states != 1:
        raise UnsupportedError(
            f"a cache layer with {layer.number_of_states} recurrent states is not served; expected 1"
        )


_CONVERTED: dict[type, type] = {
    base: type(f"Replay{base.__name__}", (ReplayLayer, base), {"__doc__": ReplayLayer.__doc__, "ordinary": base})
    for base in SERVED
}
