"""Mamba-2: our step behind SGLang's `selective_state_update`."""

from __future__ import annotations

import re
from typing import cast

from torch import Tensor

from replayssm import RawGate, TokenInputs, UnsupportedError
from replayssm_sglang.calls import Foreign
from replayssm_sglang.delta import tree_parents
from replayssm_sglang.session import Session

_LAYER_ID = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def selective_state_update(
    session: Session,
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: ARG001  the layers hold it
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    out: Tensor | None = None,
    disable_state_update: bool = False,
    retrieve_parent_token: Tensor | None = None,
    **_options: Foreign,
) -> None:
    """SGLang's call with its layouts: weights repeated over V, outputs into `out`.

    Args:
        x: `[B, H, V]` for one token a row, `[B, T, H, V]` for a verify step (`disable_state_update`).
        state_batch_indices: `[B]` slots.

    Raises:
        UnsupportedError: a call that no model of SGLang makes today.
    """
    if not dt_softplus or state_batch_indices is None or out is None:
        raise UnsupportedError("Mamba-2 without the softplus of dt, without slots or without an output is not served")
    index, steps = session.layer_of(state), session.steps
    weights = (None if dt_bias is None else dt_bias[:, 0], None if D is None else D[:, 0])
    if disable_state_update:
        inputs = _inputs(x, dt, B, C, z, *weights)
        steps.verify(index, inputs, state_batch_indices, tree_parents(retrieve_parent_token, len(x)), out)
        return
    inputs = _inputs(x[:, None], dt[:, None], B[:, None], C[:, None], None if z is None else z[:, None], *weights)
    steps.decode(index, inputs, state_batch_indices, out[:, None])


def _inputs(
    x: Tensor, dt: Tensor, B: Tensor, C: Tensor, z: Tensor | None, dt_bias: Tensor | None, D: Tensor | None
) -> TokenInputs:
    return TokenInputs(q=C, k=B, v=x, gate=dt[..., 0], raw=RawGate(dt_bias=dt_bias), D=D, z=z)


def decay_rates(model: Foreign, mixer: type, layer_ids: list[int]) -> list[Tensor]:
    """A `[H]` of each recurrent layer, in the order of `layer_ids`: the weights themselves, so that updates reach us.

    Raises:
        UnsupportedError: the mixers of the model are not those of the pool's layers, or a state would grow.
    """
    found: dict[int | str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, mixer):
            match = _LAYER_ID.search(name + ".")
            found[int(match.group(1)) if match else name] = cast(Foreign, module).A.detach()
    if sorted(found, key=str) != sorted(layer_ids, key=str):
        raise UnsupportedError(f"the pool has recurrent layers {layer_ids}, the model mixers {sorted(found, key=str)}")
    growing = [i for i in layer_ids if bool((found[i] >= 0).any())]
    if growing:
        raise UnsupportedError(
            f"the decay rates A of layers {growing} are not all below 0, as --load-format dummy makes them; load weights"
        )
    return [found[i] for i in layer_ids]
