"""Models and tokens from a directory; whatever transformers raises becomes one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from replayssm import InputError
from replayssm_transformers.guards import check_model

T = TypeVar("T")

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load_hybrid(path: Path, device: str, dtype: torch.dtype = torch.float32) -> Any:  # noqa: ANN401
    """A model in eval mode.

    Raises:
        InputError: the directory does not hold a whole model.
        UnsupportedError: the model is not a hybrid that is served.
    """
    model = _from(path, "model", lambda: _load_model(path, dtype).to(device).eval())
    check_model(model)
    return model


def load_tokenizer(path: Path) -> Any:  # noqa: ANN401
    """A model's tokenizer.

    Raises:
        InputError: it cannot be loaded.
    """
    return _from(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, **_LOCAL))


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


def _load_model(path: Path, dtype: torch.dtype) -> Any:  # noqa: ANN401
    loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True, **_LOCAL)
    model, info = loaded
    if info["missing_keys"]:
        raise InputError(f"{len(info['missing_keys'])} weights are missing, first {min(info['missing_keys'])}")
    return model


def _from(path: Path, what: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"{path}: the {what} cannot be loaded: {reason}") from None
