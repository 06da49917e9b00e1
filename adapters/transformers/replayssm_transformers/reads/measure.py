"""Read errors of every scaling over the layers, heads and positions of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.formats import FORMATS
from replayssm_transformers.reads.capture import Reading
from replayssm_transformers.reads.scalings import SCALINGS


@dataclass(frozen=True)
class ReadError:
    """‖(S − Ŝ) q‖ / ‖S q‖ of one scaling.

    Attributes:
        query, key: for queries (outputs) and keys (the delta rule's corrections): root mean square over layers, heads
            and positions, each head's error and output summed over sequences and tokens.
        worst: of the queries, the head that is worst.
        positions: of the queries, position by position.
        extra: what it stores beside the format's own parts, of the format's bytes.
    """

    format: str
    scaling: str
    query: float
    key: float
    worst: float
    positions: tuple[float, ...]
    extra: float


def read_errors(readings: Iterable[Reading], formats: Sequence[str]) -> list[ReadError]:
    """Every scaling of every format on the same readings."""
    errors: dict[tuple[str, str], list[tuple[int, Tensor, Tensor]]] = {}
    shape = (1, 1)
    for reading in readings:
        shape = (reading.state.shape[-2], reading.state.shape[-1])
        for name in formats:
            for scaling, way in SCALINGS.items():
                if name in way.formats:
                    back = way.read_back(reading.state.float(), FORMATS[name]).double()
                    query, key = (_by_head(x, back - reading.state, reading.state) for x in (reading.q, reading.k))
                    errors.setdefault((name, scaling), []).append((reading.position, query, key))
    return [_summary(*key, shape, found) for key, found in errors.items()]


def _by_head(vectors: Tensor, error: Tensor, state: Tensor) -> Tensor:
    """`[H]` of vectors `[n, H, T, K]` and matrices `[n, H, V, K]`."""
    wrong, whole = ((vectors @ x.transpose(-1, -2)).square().sum(dim=(0, 2, 3)) for x in (error, state))
    return (wrong / whole).sqrt()


def _summary(name: str, scaling: str, shape: tuple[int, int], found: list[tuple[int, Tensor, Tensor]]) -> ReadError:
    query, key = torch.cat([row[1] for row in found]), torch.cat([row[2] for row in found])
    positions = sorted({row[0] for row in found})
    by_position = tuple(_rms(torch.cat([row[1] for row in found if row[0] == at])) for at in positions)
    own = sum(part.dtype.itemsize * torch.Size(part.shape).numel() for part in FORMATS[name].parts(*shape))
    extra = SCALINGS[scaling].bytes(*shape) / own
    return ReadError(name, scaling, _rms(query), _rms(key), float(query.max()), by_position, extra)


def _rms(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())
