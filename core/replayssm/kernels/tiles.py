"""Launch shapes: a pure choice from measured tables, one JSON file a GPU, and a safe rule where there is none.

A table's entry holds what it was measured for (layer, heads, V, K, checkpoint, read copy, draft, batch) and the shape that
was fastest there. `replayssm tune` measures and writes them. An operation that is not in a table takes the nearest entry of
the same layer, V and K that reads alike, with a fourth to four times its work and the same bound (one token, drafts of up to
four, longer ones): the same checkpoint first, then the nearest draft, then the nearest amount of work.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from replayssm.errors import InputError
from replayssm.layout import StateLayout
from replayssm.recurrence import LayerKind

ENVIRONMENT = "REPLAYSSM_TILES"
"""Names a table file of one's own, asked before those of the package."""
BITS = {"fp64": 64, "fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "nvfp4": 4}
ROW_CHOICES = (16, 32, 64, 128)
FOLD_ROWS = 16
ROWS, REGISTERS, LIMITED_DRAFT, PROGRAMS, QUIET = 16, 168, 4, (512, 2048), (4096, 512)
FAR = 2.0
"""Formats and their widths; what a tile's rows may be; rows of V that a fold takes at a time, in fp32; and the rule where no
table is: rows of V a tile, registers a thread up to which draft, and, for one token and for drafts, programs up to which
heads are divided and heads below which folds are shared; and how many times twice the work says nothing any more."""


@dataclass(frozen=True)
class Tiles:
    """Launch shape of a kernel.

    Attributes:
        value: rows of V a tile.
        warps: of a program.
        count: tiles that a program walks over, 0 for all of a head.
        registers: a thread's limit, 0 for none; a limit keeps more programs in flight and spills in flush rows.
        shares: programs that share the folds of a program's rows of V where a row flushes, 0 for one a fold.

    Raises:
        InputError: a value that no kernel can be launched with.
    """

    value: int
    warps: int = 1
    count: int = 0
    registers: int = 0
    shares: int = 1

    def __post_init__(self) -> None:
        for name, allowed, words in (
            ("value", ROW_CHOICES, "a power of two from 16 to 128"),
            ("warps", (1, 2, 4, 8), "1, 2, 4 or 8"),
            ("count", range(1025), "0 (a whole head) to 1024"),
            ("registers", (0, *range(24, 256)), "0 (no limit), or 24 to 255"),
            ("shares", range(65), "0 (one a fold) to 64"),
        ):
            given = getattr(self, name)
            if type(given) is not int or given not in allowed:
                raise InputError(f"{name}={given!r} of a launch shape must be {words}")

    def parts(self, value_dim: int) -> tuple[int, int]:
        """Programs a head, and tiles of each."""
        tiles = -(-value_dim // self.value)
        count = min(self.count or tiles, tiles)
        return -(-tiles // count), count

    def fold_shares(self, value_dim: int) -> int:
        """Programs that share the folds of a program's rows of V."""
        _, count = self.parts(value_dim)
        folds = -(-min(count * self.value, value_dim) // FOLD_ROWS)
        return min(self.shares or folds, folds)

    def sharing(self, value_dim: int, rows: int, draft: int, window: int) -> tuple[int, int]:
        """Programs that share folds, and rows that have them: more than flush in most steps, few of them for nothing."""
        shares = self.fold_shares(value_dim)
        return shares, min(rows, -(-rows * (draft + 1) // window)) if shares > 1 else 0


@dataclass(frozen=True)
class Operation:
    """What a launch shape is chosen for.

    Attributes:
        layer: mamba2, gdn or kda.
        heads, value_dim, key_dim: H, V, K.
        checkpoint: format of the checkpoint, with "-sr" where it is rounded stochastically.
        read_copy: format of the read copy, or None.
        draft: T.
        batch: rows of the step.

    Raises:
        InputError: a number below 1, or an unknown name.
    """

    layer: str
    heads: int
    value_dim: int
    key_dim: int
    checkpoint: str
    read_copy: str | None
    draft: int
    batch: int

    def __post_init__(self) -> None:
        for name in ("heads", "value_dim", "key_dim", "draft", "batch"):
            given = getattr(self, name)
            if type(given) is not int or given < 1:
                raise InputError(f"{name}={given!r} of an operation must be a whole number of at least 1")
        formats = [*BITS, *(f"{stem}-sr" for stem in BITS)]
        known = (("layer", [str(kind) for kind in LayerKind]), ("checkpoint", formats), ("read_copy", [None, *BITS]))
        for name, names in known:
            if getattr(self, name) not in names:
                raise InputError(f"{name}={getattr(self, name)!r} of an operation is unknown")

    @classmethod
    def of(cls, layout: StateLayout, draft: int, batch: int) -> Operation:
        """The operation of a step."""
        r, precision = layout.recurrence, layout.precision
        checkpoint = precision.checkpoint + ("-sr" if precision.stochastic_rounding else "")
        return cls(str(r.kind), r.heads, r.value_dim, r.key_dim, checkpoint, precision.read_copy, draft, batch)

    @property
    def reads(self) -> str | None:
        """What steps read in place of a state in numbers: a copy, or a checkpoint of NVFP4."""
        return self.read_copy or ("nvfp4" if self.checkpoint == "nvfp4" else None)

    @property
    def bound(self) -> str:
        """What holds a step: one token the state, drafts their own arithmetic, long ones their registers as well."""
        return "state" if self.draft == 1 else "arithmetic" if self.draft <= LIMITED_DRAFT else "registers"

    def distance(self, other: Operation) -> tuple[float, ...] | None:
        """How far another operation is, field by field; None where its shape, or work, says nothing about this one."""
        for name in ("layer", "value_dim", "key_dim", "reads", "bound"):
            if getattr(self, name) != getattr(other, name):
                return None
        work = math.log2(self.batch * self.heads) - math.log2(other.batch * other.heads)
        if abs(work) > FAR:
            return None
        return (
            _checkpoint_distance(self.checkpoint, other.checkpoint),
            abs(math.log2(self.draft / other.draft)),
            abs(work),
            abs(math.log2(self.heads / other.heads)),
        )


@dataclass(frozen=True)
class Gpu:
    """A device as tables know it: its name, and its compute capability as 10 · major + minor."""

    name: str
    capability: int

    @property
    def file_name(self) -> str:
        """Name of its table."""
        return self.name.replace(" ", "_").replace("/", "_") + ".json"


@dataclass(frozen=True)
class Table:
    """Measured launch shapes of one GPU."""

    gpu: Gpu
    entries: tuple[tuple[Operation, Tiles], ...]

    @classmethod
    def parse(cls, facts: Mapping[str, Any], where: str) -> Table:
        """A table from its JSON form.

        Raises:
            InputError: not the form that `replayssm tune` writes.
        """
        operation, shape = {f.name for f in fields(Operation)}, {f.name for f in fields(Tiles)}
        try:
            gpu = Gpu(facts["gpu"], facts["capability"])
            if type(gpu.name) is not str or type(gpu.capability) is not int or type(facts["entries"]) is not list:
                raise InputError("gpu must be a name, capability a whole number, entries a list")
            entries = []
            for entry in facts["entries"]:
                if unknown := sorted(set(entry["tiles"]) - shape):
                    raise InputError(
                        f"tiles have unknown {', '.join(unknown)}; expected some of {', '.join(sorted(shape))}"
                    )
                entries.append((Operation(**{name: entry[name] for name in operation}), Tiles(**entry["tiles"])))
        except (KeyError, TypeError, AttributeError, InputError) as error:
            raise InputError(f"{where} is not a table of launch shapes: {type(error).__name__}: {error}") from None
        return cls(gpu, tuple(entries))

    def nearest(self, wanted: Operation) -> Tiles | None:
        """The shape of the nearest entry, None where no entry is comparable."""
        comparable = [(far, tiles) for known, tiles in self.entries if (far := wanted.distance(known)) is not None]
        return min(comparable, key=lambda pair: pair[0])[1] if comparable else None


def choose_tiles(layout: StateLayout, draft: int, batch: int, device: torch.device) -> Tiles:
    """The launch shape of a step on a device."""
    if _forced:
        return _forced[-1]
    # A power of two, so that batches that grow and shrink find their choice made.
    bucket = 1 << max(batch - 1, 0).bit_length()
    return _chosen(layout, draft, bucket, gpu_of(device))


def default_tiles(wanted: Operation) -> Tiles:
    """Where nothing was measured: tiles of 16 rows, a head divided while there are few, and folds shared by programs.

    A program goes through the history before it reads: a handful for each multiprocessor are better than more of them, but
    for drafts, whose own work is more than that. By channel the history is as much as a tile. The limit of registers keeps a
    dozen programs a multiprocessor; a decay per channel, and long drafts, need them all. More rows of narrower numbers are
    as many bytes; drafts have no registers for them, but for those of Mamba-2 in 4 bits.
    """
    rows, channel = ROWS, wanted.layer == "kda"
    if wanted.layer == "mamba2" and wanted.reads == "nvfp4":
        rows = max(ROWS, min(64, 1 << (wanted.value_dim.bit_length() - 1)))
    elif not channel and wanted.draft == 1 and BITS[wanted.reads or wanted.checkpoint.removesuffix("-sr")] in (8, 16):
        rows = max(ROWS, min(32, 1 << (wanted.value_dim.bit_length() - 1)))
    tiles, heads = -(-wanted.value_dim // rows), wanted.batch * wanted.heads
    fill, quiet = PROGRAMS[wanted.draft > 1 and not channel], QUIET[wanted.draft > 1]
    count = 0 if heads >= fill else max(1, tiles * heads // fill)
    limited = not channel and wanted.draft <= LIMITED_DRAFT
    return Tiles(rows, count=count, registers=REGISTERS if limited else 0, shares=1 if heads >= quiet else 0)


def select(tables: Iterable[Table], gpu: Gpu | None, wanted: Operation) -> Tiles:
    """The pure choice: a table of this GPU, else one of its compute capability, else the rule."""
    if gpu is not None:
        alike = [table for table in tables if table.gpu.capability == gpu.capability]
        for table in sorted(alike, key=lambda table: table.gpu != gpu):
            tiles = table.nearest(wanted)
            if tiles is not None:
                return tiles
    return default_tiles(wanted)


@lru_cache
def gpu_of(device: torch.device) -> Gpu | None:
    """What a torch device is, None for a CPU."""
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return Gpu(torch.cuda.get_device_name(device), 10 * major + minor)


@contextmanager
def forced(tiles: Tiles) -> Iterator[None]:
    """Every launch inside takes this shape: for measuring."""
    _forced.append(tiles)
    try:
        yield
    finally:
        _forced.pop()


def table_folder() -> Path:
    """Where the package's tables are."""
    return Path(str(files("replayssm.kernels").joinpath("configs")))


@lru_cache
def load_tables() -> tuple[Table, ...]:
    """One's own table first, then those of the package.

    Raises:
        InputError: a file cannot be read, or is no table.
    """
    own = os.environ.get(ENVIRONMENT)
    paths = [*([Path(own)] if own else []), *sorted(table_folder().glob("*.json"))]
    return tuple(Table.parse(read_json(path), str(path)) for path in paths)


def read_json(path: Path) -> dict[str, Any]:
    """A table file's contents.

    Raises:
        InputError: it cannot be read, or is not a JSON object.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(facts, dict):
        raise InputError(f"{path} holds a {type(facts).__name__}; expected a table of launch shapes")
    return facts


def entry_of(operation: Operation, tiles: Tiles) -> dict[str, Any]:
    """One entry in its JSON form."""
    return {**asdict(operation), "tiles": asdict(tiles)}


_forced: list[Tiles] = []


@lru_cache(maxsize=4096)
def _chosen(layout: StateLayout, draft: int, batch: int, gpu: Gpu | None) -> Tiles:
    return select(load_tables() if gpu else (), gpu, Operation.of(layout, draft, batch))


def _checkpoint_distance(one: str, other: str) -> float:
    """0 for the same format, less than 1 for another rounding of it, more by the ratio of widths."""
    if one == other:
        return 0.0
    stems = [name.removesuffix("-sr") for name in (one, other)]
    width = abs(math.log2(BITS[stems[0]] / BITS[stems[1]]))
    return 2.0 * width + (0.5 if stems[0] == stems[1] else 0.75)
