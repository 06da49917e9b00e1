"""Whole request lives on the small engine with the adapter in it, judged by the model run over each whole sequence."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace

import torch
from small_engine import installed, models
from small_engine.base import Batch, Mapping, Request
from small_engine.mixers_common import conv_sequence

from replayssm import RawGate, Recurrence, TokenInputs
from replayssm.conformance.driver import close
from replayssm.conformance.tolerances import AMPLIFICATION, ROUNDOFF, tolerance
from replayssm.reference.recurrence import run_recurrence
from replayssm_trtllm import ReplaySSMConfig
from replayssm_trtllm.surface import SELECTOR, SELECTOR_MODULE

LAYERS = 3
DECAY_SUM = 200.0
PADDING = Request(-1, is_dummy=True)


def whole_sequence(model, tokens, kind):
    """A whole sequence in float64, the ordinary recurrence in each layer, no cache: hidden states `[n, D]`, and the first
    layer's state `[H, V, K]`."""
    first = None
    hidden = model.embed.detach().double()[tokens]
    for mixer in model.mixers.values():
        weights = {name: p.detach().double() for name, p in mixer.named_parameters()}
        packed = torch.tanh(hidden) @ weights["in_proj"].T
        width = sum(mixer.sizes)
        mixed, _ = conv_sequence(
            packed[:, :width], torch.zeros(width, weights["conv"].shape[1] - 1).double(), weights["conv"]
        )
        parts = [part[None] for part in mixer.split(mixed)]
        if kind == "mamba2":
            x, B, C = parts
            geometry = Recurrence.mamba2(
                heads=x.shape[2], head_dim=x.shape[3], state_size=B.shape[3], groups=B.shape[2]
            )
            gate, raw = packed[None, :, width:], RawGate(dt_bias=weights["dt_bias"])
            inputs = TokenInputs(q=C, k=B, v=x, gate=gate, raw=raw, D=weights["D"])
            A = weights["A"]
        else:
            q, k, v = parts
            geometry = Recurrence.gdn(
                value_heads=v.shape[2], key_heads=k.shape[2], value_dim=v.shape[3], key_dim=k.shape[3]
            )
            beta, gate = packed[None, :, width:].split(v.shape[2], -1)
            raw = RawGate(dt_bias=weights["dt_bias"], A_log=weights["A_log"])
            inputs = TokenInputs(
                q=q, k=k, v=v, gate=gate, beta=beta, raw=raw, qk_l2norm=True, scale=k.shape[-1] ** -0.5
            )
            A = None
        state = torch.zeros(1, *geometry.state_shape, dtype=torch.float64)
        out, last = run_recurrence(geometry, state, inputs, A)
        first = last[0] if first is None else first
        hidden = hidden + out[0].flatten(1) @ weights["out_proj"].T
    return hidden, first


class Life:
    """One engine with requests in it.

    Args:
        variant: of the small engine.
        kind: "mamba2" or "gdn".
        drafts: of a speculating engine, None for ordinary decode.
        fields: of ReplaySSMConfig; None for the engine without the plugin.
        operand: dtype that a backend rounds operands of products to, where it does.
        shape: of the layers, as `models.pretrained` names it.
    """

    def __init__(
        self,
        monkeypatch,
        variant,
        kind,
        *,
        drafts=None,
        fields=None,
        dtype=torch.float64,
        ssm=torch.float32,
        slots=6,
        rows=5,
        mapping=None,
        install=True,
        operand=None,
        shape=None,
    ):
        if install:
            installed.install(monkeypatch, variant)
        self.kind, self.drafts, self.rows, self.operand = kind, drafts, rows, operand
        spec = None if drafts is None else SimpleNamespace(tokens_per_gen_step=drafts + 1)
        config = models.pretrained(kind, dtype=dtype, layers=LAYERS, **(shape or {}))
        if fields is not None:
            replay = ReplaySSMConfig(**({"decode": True, "backend": "torch"} | fields))
            config.replay_ssm = replay.model_dump() | {"mode": "plugin"}
            registered = importlib.import_module("replayssm_trtllm.models").REGISTERED
        else:
            registered = {}
        torch.manual_seed(11)
        self.config = models.model_config(config, mapping=mapping, spec_config=spec, ssm_dtype=ssm)
        architecture = config.architectures[0]
        self.model = (registered.get(architecture) or plain_class(architecture))(self.config)
        self.manager = self.make_manager(slots, ssm, dtype, spec)
        self.requests, self.tokens = {}, {}
        self.accepted = None
        if spec is not None:
            self.model.worker = self._report
        self._truth = {}
        self.steps = 0
        self.generator = torch.Generator("cpu").manual_seed(5)

    def make_manager(self, slots, ssm, dtype, spec):
        selector = getattr(importlib.import_module(SELECTOR_MODULE), SELECTOR)
        cls = selector(self.config, None)
        c = self.config.pretrained_config
        geometry = (
            (c.ssm_state_size, c.conv_kernel, c.mamba_num_heads, c.n_groups, c.mamba_head_dim)
            if self.kind == "mamba2"
            else (
                c.linear_key_head_dim,
                c.linear_conv_kernel_dim,
                c.linear_num_value_heads,
                c.linear_num_key_heads,
                c.linear_value_head_dim,
            )
        )
        return cls(
            *geometry,
            sum(c.recurrent_mask),
            c.recurrent_mask,
            dtype,
            ssm,
            None,
            None,
            max_batch_size=self.rows,
            mapping=self.config.mapping or Mapping(),
            spec_config=spec,
            slots=slots,
        )

    # Requests.

    def prefill(self, request_id, count, chunks=1, generations=()):
        """A prompt of `count` random tokens in chunks; ordinary decode of `generations` rides along."""
        if request_id not in self.requests:
            self.requests[request_id], self.tokens[request_id] = Request(request_id), []
        prompt = self.random(count)
        for part in torch.tensor(prompt).tensor_split(chunks):
            self.forward([(request_id, part.tolist())], [(row, self.step_tokens()) for row in generations])

    def decode(self, *request_ids, padding=0, accept=None):
        """One step of the requests, with rows of padding."""
        self.forward([], [(request_id, self.step_tokens()) for request_id in request_ids], padding, accept)

    def finish(self, request_id):
        """The request ends; its slot is free."""
        self.manager.free_resources(self.requests.pop(request_id))
        self.tokens.pop(request_id)

    def preempt(self, request_id, chunks=1):
        """Recomputation: the slot is given away, and the sequence so far is prefilled again elsewhere."""
        sequence = self.tokens[request_id]
        self.manager.free_resources(self.requests[request_id])
        self.manager.free.append(self.manager.free.pop(0))
        self.tokens[request_id] = []
        for part in torch.tensor(sequence).tensor_split(chunks):
            self.forward([(request_id, part.tolist())], [])

    def step_tokens(self):
        return self.random(1 if self.drafts is None else self.drafts + 1)

    def random(self, count):
        vocabulary = self.config.pretrained_config.vocab_size
        return torch.randint(0, vocabulary, (count,), generator=self.generator, device="cpu").tolist()

    # One forward.

    def forward(self, contexts, generations, padding=0, accept=None, alias=None):
        """Contexts first, then generation rows, then padding; outputs are compared, acceptance is random.

        `alias`: a slot that the rows of padding name, in place of their own.
        """
        batch = Batch(
            [self.requests[i] for i, _ in contexts], [self.requests[i] for i, _ in generations] + [PADDING] * padding
        )
        self.manager.prepare_resources(batch)
        if alias is not None:
            self.manager.cuda_state_indices[len(contexts) + len(generations) :] = alias
        width = 1 if self.drafts is None else self.drafts + 1
        rows = [*contexts, *generations, *[(None, [0] * width)] * padding]
        lengths = torch.tensor([len(tokens) for _, tokens in rows], dtype=torch.int32)
        first = [bool(self.tokens[i]) for i, _ in contexts] + [True] * (len(rows) - len(contexts))
        metadata = SimpleNamespace(
            kv_cache_manager=self.manager,
            num_contexts=len(contexts),
            num_seqs=len(rows),
            seq_lens=lengths,
            mamba_metadata=SimpleNamespace(
                state_indices=self.manager.cuda_state_indices, has_initial_states=torch.tensor(first)
            ),
        )
        if self.drafts is not None:
            random = torch.randint(1, width + 1, (len(rows),), generator=self.generator, device="cpu").tolist()
            self.accepted = torch.tensor(random if accept is None else [accept] * len(rows), dtype=torch.int32)
        spec = None if self.drafts is None else SimpleNamespace(runtime_draft_len=self.drafts)
        ids = torch.tensor([token for _, tokens in rows for token in tokens])
        with torch.no_grad():
            out = self.model.forward(attn_metadata=metadata, input_ids=ids, spec_metadata=spec)
        self.steps += 1
        self._compare(rows, lengths, out)
        for row, (request_id, tokens) in enumerate(rows):
            if request_id is not None:
                kept = len(tokens) if row < len(contexts) or self.drafts is None else int(self.accepted[row])
                self.tokens[request_id] += tokens[:kept]

    def _report(self, metadata):
        self.manager.update_mamba_states(metadata, self.accepted)

    def _compare(self, rows, lengths, out):
        start = 0
        for (request_id, tokens), length in zip(rows, lengths.tolist(), strict=True):
            if request_id is not None:
                whole = self.truth(self.tokens[request_id] + tokens)[0][-length:]
                close(
                    out[start : start + length].double(),
                    whole,
                    self.bound,
                    f"request {request_id}, forward {self.steps}",
                )
            start += length

    def check_states(self):
        """The first layer, whose inputs no error has reached yet: its states are those of the ordinary recurrence."""
        layers = self.state.layers
        bound = (
            tolerance(layers.layout, self.operand or layers.layout.compute_dtype, self.steps, DECAY_SUM).state
            + self.stored
        )
        for request_id, sequence in self.tokens.items():
            slot = torch.tensor([self.manager.slot_of[request_id]])
            close(layers.state(0, slot)[0].double(), self.truth(sequence)[1], bound, f"state of request {request_id}")

    def truth(self, sequence):
        key = tuple(sequence)
        if key not in self._truth:
            self._truth[key] = whole_sequence(self.model, list(sequence), self.kind)
        return self._truth[key]

    @property
    def bound(self):
        """A layer's tolerance, and what it may have grown to in the layers after it."""
        layout = self.state.layers.layout if self.state is not None else None
        if layout is None:
            return 1e-5
        one = tolerance(layout, self.operand or layout.compute_dtype, self.steps, DECAY_SUM).output
        copy = layout.precision.read_copy
        read = self.stored + (ROUNDOFF[copy] if copy else 0.0)
        return (one + AMPLIFICATION * read) * sum(AMPLIFICATION**i for i in range(LAYERS))

    @property
    def stored(self):
        """What rounding a state to the checkpoint's format costs beside a truth that never rounds: writes add as a walk."""
        return ROUNDOFF[self.state.layers.layout.precision.checkpoint] * math.sqrt(self.steps + 1)

    @property
    def state(self):
        return self.manager.replayssm_state() if hasattr(self.manager, "replayssm_state") else None


def plain_class(architecture):
    file = "modeling_nemotron_h" if architecture.startswith("Nemotron") else "modeling_qwen3_next"
    return getattr(importlib.import_module(f"tensorrt_llm._torch.models.{file}"), architecture)
