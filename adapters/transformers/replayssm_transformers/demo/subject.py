"""A model with the tokens that it is measured on. All are loaded before any is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from replayssm import InputError
from replayssm_transformers.bundled import heldout_text, model_path
from replayssm_transformers.evaluate import MIN_LENGTH
from replayssm_transformers.guards import check_model

T = TypeVar("T")


@dataclass(frozen=True)
class Texts:
    """Text for greedy decoding and KL, text for drafts, and what messages call them."""

    prose: str
    code: str
    source: str
    heldout: bool

    @staticmethod
    def bundled() -> Texts:
        """Text that no bundled model was trained on."""
        return Texts(heldout_text("bible"), heldout_text("code"), "the held-out text", heldout=True)


@dataclass(frozen=True)
class Request:
    """How many tokens are asked for; 0 for none of the KL."""

    prompt: int
    quality: int
    device: str


@dataclass(frozen=True)
class Subject:
    """A loaded model; tokens are `[1, L]`, `quality` is None where no KL is asked for.

    Attributes:
        shortage: one line where the text holds fewer tokens than asked, else empty.
    """

    name: str
    model: Any
    tokenizer: Any
    prompt: Tensor
    drafts_prompt: Tensor
    quality: Tensor | None
    shortage: str


def load_subject(name: str, texts: Texts, request: Request) -> Subject:
    """Load a model and tokenise its text.

    Raises:
        InputError: the directory does not hold a whole model and tokenizer, or the text is too short.
        UnsupportedError: the model is not a hybrid that is served.
    """
    path = model_path(name)
    model: Any = _from(path, "model", lambda: _load_model(path).to(request.device).eval())
    check_model(model)
    tokenizer = _from(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, **_LOCAL))
    prompt, drafts_prompt, quality = (
        encode(tokenizer, text, count, f"the tokenizer in {path}").to(request.device)
        for text, count in ((texts.prose, request.prompt), (texts.code, request.prompt), (texts.prose, request.quality))
    )
    found = quality.shape[1]
    if request.quality and found < MIN_LENGTH:
        raise InputError(
            f"{texts.source} holds {found} tokens for {path.name}; the KL needs at least {MIN_LENGTH} (--length=0 for none)"
        )
    shortage = _shortage(path.name, texts, request, min(prompt.shape[1], drafts_prompt.shape[1]), found)
    return Subject(path.name, model, tokenizer, prompt, drafts_prompt, quality if request.quality else None, shortage)


def encode(tokenizer: Any, text: str, count: int, what: str) -> Tensor:  # noqa: ANN401
    """The first `count` tokens of a text that is not empty, `[1, count]`, or all of them.

    Raises:
        InputError: the tokenizer, which messages call `what`, makes no tokens of it.
    """
    # The start is enough for most tokenizers, and the whole may be long.
    for part in (text[: 16 * count + 64], text):
        tokens: Tensor = tokenizer(part, return_tensors="pt")["input_ids"].long()
        if tokens.shape[1] >= max(count, 1):
            break
    if not tokens.numel():
        raise InputError(f"{what} makes no tokens of the text; expected a directory with the model's tokenizer files")
    return tokens[:, :count]


_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def _load_model(path: Path) -> Any:  # noqa: ANN401
    loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **_LOCAL)
    model, info = loaded
    if info["missing_keys"]:
        raise InputError(f"{len(info['missing_keys'])} weights are missing, first {min(info['missing_keys'])}")
    return model


def _from(path: Path, what: str, load: Callable[[], T]) -> T:
    """What transformers loads from a directory; whatever it raises becomes one line."""
    try:
        return load()
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"{path}: the {what} cannot be loaded: {reason}") from None


def _shortage(name: str, texts: Texts, request: Request, prompt: int, quality: int) -> str:
    if prompt >= request.prompt and quality >= request.quality:
        return ""
    kl = f", {quality} of {request.quality} for the KL" if request.quality else ""
    return f"{name}: {texts.source} is short: {prompt} of {request.prompt} tokens used for the prompt{kl}"
