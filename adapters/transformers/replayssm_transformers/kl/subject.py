"""The model and the rows of text that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from replayssm import InputError
from replayssm_transformers.evaluate import PREFILL
from replayssm_transformers.kl.settings import DTYPES, LENGTH, MOST_ROWS, SHORTEST, Settings
from replayssm_transformers.loading import encode, load_hybrid, load_tokenizer


@dataclass(frozen=True)
class Subject:
    """A loaded model; `tokens` are `[rows, length]` on its device.

    Attributes:
        note: one line on the rows, and on whether the model was made for their length.
    """

    name: str
    model: Any
    tokens: Tensor
    note: str

    @property
    def predictions(self) -> int:
        """Of a row."""
        return int(self.tokens.shape[1]) - PREFILL


def load_subject(settings: Settings) -> Subject:
    """Load the model and tokenise its text.

    Raises:
        InputError: not a whole model and tokenizer, or the text is too short.
        UnsupportedError: not a hybrid model that is served.
    """
    path = settings.path
    model = load_hybrid(path, settings.device, DTYPES[settings.dtype])
    tokenizer = load_tokenizer(path)
    most = (settings.length or LENGTH) * (settings.rows or MOST_ROWS)
    tokens = rows_of(encode(tokenizer, settings.text, most, f"the tokenizer in {path}"), settings)
    known = model.get_input_embeddings().num_embeddings
    if int(tokens.max()) >= known:
        raise InputError(
            f"{path}: the tokenizer makes token {int(tokens.max())}, but the model knows {known}; expected its own tokenizer"
        )
    made_for = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    rows, length = tokens.shape
    note = f"{path.resolve().name}: {rows} row{'s' * (rows > 1)} of {length:,} tokens of {settings.source}"
    if isinstance(made_for, int) and made_for < length:
        note += f"; the model was made for {made_for:,} (max_position_embeddings)"
    return Subject(path.resolve().name, model, tokens.to(settings.device), note)


def rows_of(tokens: Tensor, settings: Settings) -> Tensor:
    """`[1, n]` tokens of a text → consecutive pieces `[rows, length]`.

    Raises:
        InputError: the text does not hold that many, or too few for any measurement.
    """
    found = tokens.shape[1]
    length = settings.length or min(LENGTH, found // (settings.rows or 1))
    rows = settings.rows or min(MOST_ROWS, max(found // length, 1)) if length else 1
    if length < SHORTEST or rows * length > found:
        asked = f"--rows={rows} of --length={length}" if settings.length else f"--rows={rows} of at least {SHORTEST}"
        needed = rows * max(length, SHORTEST)
        raise InputError(f"{settings.source} holds {found:,} tokens; {asked} needs {needed:,}")
    return tokens[0, : rows * length].reshape(rows, length)
