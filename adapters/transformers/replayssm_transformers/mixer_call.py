"""What a mixer does with its cache layer, without its weights: keep the convolution's inputs, call the operator."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm import LayerKind, StateLayout, TokenInputs
from replayssm_transformers import active, patch
from replayssm_transformers.layer import STATE, ReplayLayer
from replayssm_transformers.operators import NO_LIMIT, Operator
from replayssm_transformers.surface import OPERATORS
from replayssm_transformers.table import Family

CONV_WIDTH = 4
CHUNK = 16


@dataclass(frozen=True)
class MixerCall:
    """A family's way to its operators.

    Attributes:
        family: whose operators are called.
        layout: of the state.
        A: `[H]` decay rates for Mamba-2.
    """

    family: Family
    layout: StateLayout
    A: Tensor | None

    def run(self, layer: ReplayLayer, tokens: TokenInputs) -> Tensor:
        """Tokens `[1, T, …]` → outputs `[1, T, H, V]`."""
        layer.update_conv_state(tokens.v.flatten(2).transpose(1, 2), conv_kernel_size=CONV_WIDTH)
        patch.install(self.family)
        active.enter(layer)
        try:
            return self._operate(layer, tokens)
        finally:
            active.leave()
            patch.uninstall(self.family)

    def _operate(self, layer: ReplayLayer, tokens: TokenInputs) -> Tensor:
        module = importlib.import_module(self.family.module)
        single, several = (getattr(module, name) for name in OPERATORS[self.family.kind])
        alone = tokens.draft == 1 and layer.recurrent_states[STATE] is not None
        if self.family.kind is not LayerKind.MAMBA2:
            return self._delta_rule(single if alone else several, layer, tokens)
        return self._mamba2_step(single, layer, tokens) if alone else self._mamba2_scan(several, layer, tokens)

    def _delta_rule(self, operator: Operator, layer: ReplayLayer, tokens: TokenInputs) -> Tensor:
        out, final = operator(
            tokens.q,
            tokens.k,
            tokens.v,
            g=tokens.gate,
            beta=tokens.beta,
            initial_state=layer.recurrent_states[STATE],
            output_final_state=True,
            use_qk_l2norm_in_kernel=tokens.qk_l2norm,
        )
        layer.update_recurrent_state(final.to(torch.float32))
        result: Tensor = out
        return result

    def _mamba2_scan(self, operator: Operator, layer: ReplayLayer, tokens: TokenInputs) -> Tensor:
        dt = before_softplus(tokens.gate)
        out, final = operator(
            tokens.v,
            dt,
            self.A,
            tokens.k,
            tokens.q,
            chunk_size=CHUNK,
            D=tokens.D,
            z=tokens.z,
            return_final_states=True,
            dt_bias=torch.zeros_like(dt[0, 0]),
            dt_softplus=True,
            initial_states=layer.recurrent_states[STATE],
            dt_limit=NO_LIMIT,
        )
        layer.update_recurrent_state(final)
        result: Tensor = out
        return result

    def _mamba2_step(self, operator: Operator, layer: ReplayLayer, tokens: TokenInputs) -> Tensor:
        geometry = self.layout.recurrence
        assert self.A is not None
        per_value = (geometry.heads, geometry.value_dim)
        dt = before_softplus(tokens.gate)
        out: Tensor = operator(
            layer.recurrent_states[STATE],
            tokens.v[:, 0],
            dt.transpose(1, 2).expand(1, *per_value),
            self.A[:, None, None].expand(geometry.state_shape),
            tokens.k[:, 0],
            tokens.q[:, 0],
            None if tokens.D is None else tokens.D[:, None].expand(per_value),
            z=None if tokens.z is None else tokens.z[:, 0],
            dt_bias=torch.zeros_like(dt[0, 0])[:, None].expand(per_value),
            dt_softplus=True,
        )
        return out[:, None]


def before_softplus(delta: Tensor) -> Tensor:
    """Operators of Mamba-2 take dt: the number whose softplus is Δ.

    Rounded to fp32, which puts 2^-24 · |dt| of relative error on Δ; below the fp32 fold's own bound for Δ above 1e-6.
    """
    exact = delta.double()
    return (exact + torch.log(-torch.expm1(-exact))).to(torch.float32)
