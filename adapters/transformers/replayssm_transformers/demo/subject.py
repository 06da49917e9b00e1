"""A model with the tokens that it is measured on. All are loaded before any is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from replayssm import InputError
from replayssm_transformers.bundled import heldout_text, model_path
from replayssm_transformers.evaluate import MIN_LENGTH
from replayssm_transformers.loading import encode, load_hybrid, load_tokenizer


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
    model = load_hybrid(path, request.device)
    tokenizer = load_tokenizer(path)
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


def _shortage(name: str, texts: Texts, request: Request, prompt: int, quality: int) -> str:
    if prompt >= request.prompt and quality >= request.quality:
        return ""
    kl = f", {quality} of {request.quality} for the KL" if request.quality else ""
    return f"{name}: {texts.source} is short: {prompt} of {request.prompt} tokens used for the prompt{kl}"
