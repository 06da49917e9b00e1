"""Conventional kernels of engines, found where their packages are installed.

Engines are named here as data and imported on request alone, so that the core depends on none. What a function takes is
read from its signature: one that lacks a name that we would pass is refused with that reason, as is one whose results
differ from the reference. None of their code is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from replayssm.bench import peers_delta, peers_mamba2
from replayssm.bench.conventional import Kind, Ordinary, Prepared
from replayssm.errors import UnsupportedError

Function = Callable[..., Any]
Build = Callable[[Function, Ordinary, Tensor, str], Prepared]


@dataclass(frozen=True)
class Peer:
    """An engine's kernel.

    Attributes:
        distribution: its package, as it is installed.
        modules: where the function may be, newest first: engines move their files.
        function: its name.
        layers: kinds of layers that it serves.
        build: makes memory and launch.
        needs: parameters that the function must have; with drafts, `draft_needs`, too.
        draft_needs: None where it keeps no snapshot of each token.
        states: formats of the state.
        layouts: order of the state's dimensions, each tried.
    """

    distribution: str
    modules: tuple[str, ...]
    function: str
    layers: tuple[str, ...]
    build: Build
    needs: tuple[str, ...]
    draft_needs: tuple[str, ...] | None
    states: tuple[str, ...] = ("fp32", "bf16", "fp16")
    layouts: tuple[str, ...] = ("",)

    @property
    def name(self) -> str:
        """Package, version and function."""
        try:
            installed = version(self.distribution)
        except PackageNotFoundError:
            installed = "?"
        return f"{self.distribution} {installed} {self.function}"

    @property
    def installed(self) -> bool:
        """Whether the package can be imported, judged without importing it."""
        return find_spec(self.modules[0].partition(".")[0]) is not None

    def variants(self, kind: Kind) -> Sequence[str]:
        """See `Implementation.variants`."""
        layer = kind.geometry.layer
        if layer not in self.layers:
            raise UnsupportedError(f"serves {', '.join(self.layers)}, not {layer}")
        if kind.state not in self.states:
            raise UnsupportedError(f"serves states in {', '.join(self.states)}, not {kind.state}")
        if kind.draft > 1 and self.draft_needs is None:
            raise UnsupportedError("keeps no state snapshot of each token")
        self.load(kind.draft)
        return self.layouts

    def prepare(self, step: Ordinary, start: Tensor, variant: str) -> Prepared:
        """See `Implementation.prepare`."""
        return self.build(self.load(step.inputs.draft), step, start, variant)

    def load(self, draft: int) -> Function:
        """Import the function and check its parameters.

        Raises:
            UnsupportedError: it cannot be imported, or takes other parameters.
        """
        reasons = []
        for module in self.modules:
            try:
                function: Function = getattr(import_module(module), self.function)
                parameters = inspect.signature(function).parameters
            except Exception as error:  # whatever an engine raises while it is imported
                reasons.append(f"{module}: {type(error).__name__}: {error}")
                continue
            missing = [
                name for name in (*self.needs, *(self.draft_needs or ()) * (draft > 1)) if name not in parameters
            ]
            if not missing:
                return function
            reasons.append(f"{module}.{self.function} has no parameter {', '.join(missing)}")
        raise UnsupportedError("; ".join(reasons)[:500])


_SSU = ("state", "x", "dt", "A", "B", "C", "D", "dt_bias", "dt_softplus")
_SIGMOID = ("A_log", "a", "b", "dt_bias", "q", "k", "v", "scale", "use_qk_l2norm_in_kernel", "cu_seqlens")
_SNAPSHOTS = ("disable_state_update", "intermediate_states_buffer", "intermediate_state_indices", "cache_steps")

PEERS: tuple[Peer, ...] = (
    Peer(
        "mamba-ssm", ("mamba_ssm.ops.triton.selective_state_update",), "selective_state_update", ("mamba2",),
        peers_mamba2.in_place, _SSU, None,
    ),
    Peer(
        "vllm", ("vllm.model_executor.layers.mamba.ops.mamba_ssm",), "selective_state_update", ("mamba2",),
        peers_mamba2.slots, (*_SSU, "state_batch_indices", "out"),
        ("dst_state_batch_indices", "num_accepted_tokens", "cu_seqlens"),
    ),
    Peer(
        "sglang",
        ("sglang.kernels.ops.mamba.triton_ops.mamba_ssm", "sglang.srt.layers.attention.mamba.ops.mamba_ssm",
         "sglang.srt.layers.attention.mamba.mamba_ssm"),
        "selective_state_update", ("mamba2",), peers_mamba2.snapshots, (*_SSU, "state_batch_indices", "out"), _SNAPSHOTS,
    ),
    Peer(
        "flashinfer-python", ("flashinfer.mamba", "flashinfer.mamba.selective_state_update"), "selective_state_update",
        ("mamba2",), peers_mamba2.snapshots_fp32_weights, (*_SSU, "state_batch_indices", "out"), _SNAPSHOTS,
    ),
    Peer(
        "fla-core", ("fla.ops.gated_delta_rule",), "fused_recurrent_gated_delta_rule", ("gdn",), peers_delta.processed,
        ("q", "k", "v", "g", "beta", "scale", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel"), None,
        layouts=("VK", "KV"),
    ),
    Peer(
        "fla-core", ("fla.ops.kda",), "fused_recurrent_kda", ("kda",), peers_delta.processed,
        ("q", "k", "v", "g", "beta", "scale", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel"), None,
        layouts=("VK", "KV"),
    ),
    Peer(
        "fla-core", ("fla.ops.kda.fused_recurrent",), "fused_recurrent_kda_fwd", ("kda",), peers_delta.processed_slots,
        ("q", "k", "v", "g", "beta", "scale", "initial_state", "inplace_final_state", "cu_seqlens", "ssm_state_indices",
         "use_qk_l2norm_in_kernel"), (), layouts=("VK", "KV"),
    ),
    Peer(
        "vllm",
        ("vllm.third_party.flash_linear_attention.ops", "vllm.model_executor.layers.fla.ops",
         "vllm.model_executor.layers.fla.ops.fused_sigmoid_gating"),
        "fused_sigmoid_gating_delta_rule_update", ("gdn", "kda"), peers_delta.sigmoid_slots,
        (*_SIGMOID, "initial_state", "inplace_final_state", "ssm_state_indices"), ("num_accepted_tokens",),
        layouts=("VK", "KV"),
    ),
    Peer(
        "sglang",
        ("sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent",
         "sglang.kernels.ops.attention.fla.fused_sigmoid_gating_recurrent",
         "sglang.srt.layers.attention.fla.fused_sigmoid_gating_recurrent"),
        "fused_sigmoid_gating_delta_rule_update", ("gdn", "kda"), peers_delta.sigmoid_snapshots,
        (*_SIGMOID, "softplus_beta", "softplus_threshold", "initial_state_source", "initial_state_indices"), _SNAPSHOTS,
        layouts=("VK", "KV"),
    ),
    Peer(
        "flashinfer-python", ("flashinfer.gdn_decode",), "gated_delta_rule_decode_pretranspose", ("gdn",),
        peers_delta.flashinfer_one, ("q", "k", "v", "state", "A_log", "a", "dt_bias", "b", "scale", "use_qk_l2norm"), None,
        states=("fp32", "bf16"),
    ),
    Peer(
        "flashinfer-python", ("flashinfer.gdn_decode",), "gated_delta_rule_mtp", ("gdn",), peers_delta.flashinfer_drafts,
        ("q", "k", "v", "initial_state", "initial_state_indices", "A_log", "a", "dt_bias", "b", "scale", "use_qk_l2norm",
         "intermediate_states_buffer", "disable_state_update"), (), states=("fp32",),
    ),
)  # fmt: skip
"""Kernels that are looked for."""


def find_peers() -> list[Peer]:
    """Kernels whose package is installed."""
    return [peer for peer in PEERS if peer.installed]
