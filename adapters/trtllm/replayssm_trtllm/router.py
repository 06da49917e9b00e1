"""Brings the calls of a model's recurrent mixers to the state of the cache manager that the forward uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from replayssm import LayerKind, StepError, TokenInputs, UnsupportedError
from replayssm_trtllm.manager import state_of
from replayssm_trtllm.state import ReplaySSMState


class Router:
    """One model's mixers and, during a forward, the state that they step.

    Args:
        kind: of the recurrent layers.
        constants: global layer number → a function that gives its `A [H]` (Mamba-2) or None, once weights are there.
    """

    def __init__(self, kind: LayerKind, constants: dict[int, Callable[[], Tensor | None]]) -> None:
        self.kind, self._constants = kind, constants
        self._state: ReplaySSMState | None = None

    @contextmanager
    def forward(self, attn_metadata: Any) -> Iterator[None]:  # noqa: ANN401  the engine's metadata
        """A forward of the model: cursors move inside, so a captured forward moves them at each replay.

        Raises:
            UnsupportedError: the forward uses a cache manager that the plugin did not extend.
            StepError: the last forward verified drafts, and no acceptance was reported.
        """
        manager = attn_metadata.kv_cache_manager
        state = state_of(manager)
        if not state.ready:
            state.attach({layer: constant() for layer, constant in self._constants.items()})
        state.check_accepted()
        contexts = int(attn_metadata.num_contexts)
        state.begin(contexts, dummy_mask(manager, state))
        self.enter(state)
        try:
            yield
        except BaseException:
            state.fail()
            raise
        finally:
            self.leave()
        state.finish(attn_metadata.mamba_metadata.state_indices[:contexts])

    def enter(self, state: ReplaySSMState) -> None:
        """Mixers step this state from now on."""
        self._state = state

    def leave(self) -> None:
        """Mixers step no state."""
        self._state = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(self, layer_id: int, inputs: TokenInputs, slots: Tensor, *, standard: bool) -> Tensor:
        """See `ReplaySSMState.step`.

        Raises:
            StepError: outside of a forward of the plugin's model class.
        """
        if self._state is None:
            raise StepError(f"mixer {layer_id} decodes outside of a forward of the plugin's model class")
        return self._state.step(layer_id, inputs, slots, standard=standard)


def dummy_mask(manager: Any, state: ReplaySSMState) -> Tensor | None:  # noqa: ANN401
    """The manager's mask of rows that are padding, at a stable address: `[rows]` bool."""
    if state.layers is None:
        return None
    mask = manager.replayssm_dummies()
    if not isinstance(mask, Tensor):
        raise UnsupportedError(
            "the cache manager has no mask of padded rows; without it a padded batch folds live slots"
        )
    return mask


def deliver(out: Tensor, given: Tensor | None, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Outputs `[B, T, H, V]` where the engine wants them: in its own tensor, or in a new one of `shape`."""
    if given is None:
        return out.reshape(shape)
    given.copy_(out.reshape(given.shape))
    return given
