"""Which number formats hold the state: a checkpoint that carries the recurrence, and an optional read copy for outputs.

And what products of a read round their operands to: with exact folds a choice that reaches outputs alone, as the copy does.

The read copy is the third gain of ReplaySSM ("Cache SSM Inputs, Not State", NVIDIA and Dao AI Lab, 2026): a non-flush step
reads only the low-precision copy, a flush step only the checkpoint, so the copy's error never enters the recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass

from replayssm.errors import InputError
from replayssm.formats import FORMATS, MatrixFormat

CHECKPOINTS = ("fp64", "fp32", "bf16", "fp16", "fp8", "nvfp4")
READ_COPIES = (None, "fp8", "nvfp4")
STOCHASTIC = ("fp16", "fp8")
DOTS = (None, "tf32", "tf32x3")


@dataclass(frozen=True)
class PrecisionPolicy:
    """Checkpoint format × rounding × read copy × products.

    Attributes:
        checkpoint: format that is folded: fp32, bf16, fp16, fp8, nvfp4 (the last only as the shared baseline).
        stochastic_rounding: round the checkpoint stochastically (fp16 and fp8), from a device-resident Philox seed.
        read_copy: None, "fp8" or "nvfp4": what non-flush steps read in place of the checkpoint.
        exact_fold: re-solve the delta rule's corrections from the checkpoint at each flush. Off only to measure what
            it is worth: the corrections then carry the read copy's error into the recurrence.
        dot: products of reads on tensor cores: "tf32", one, which keeps 11 bits of an fp32 operand, or "tf32x3", three,
            which keep 22. None for one where activations have 16 bits, which TF32 holds, and three where they are fp32.
            Folds keep as many with either, and other backends compute in fp32.

    Raises:
        InputError: an unknown format, or one that cannot be combined.
    """

    checkpoint: str = "fp32"
    stochastic_rounding: bool = False
    read_copy: str | None = None
    exact_fold: bool = True
    dot: str | None = None

    def __post_init__(self) -> None:
        if self.checkpoint not in CHECKPOINTS:
            raise InputError(f"checkpoint={self.checkpoint!r} is unknown; expected one of {', '.join(CHECKPOINTS)}")
        if self.read_copy not in READ_COPIES:
            raise InputError(f"read_copy={self.read_copy!r} is unknown; expected None, 'fp8' or 'nvfp4'")
        if self.dot not in DOTS:
            raise InputError(f"dot={self.dot!r} is unknown; expected None, 'tf32' or 'tf32x3'")
        for name in ("stochastic_rounding", "exact_fold"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.stochastic_rounding and self.checkpoint not in STOCHASTIC:
            raise InputError(
                f"stochastic_rounding=True needs a checkpoint of {' or '.join(STOCHASTIC)}, got {self.checkpoint!r}"
            )

    @classmethod
    def preset(cls, name: str) -> PrecisionPolicy:
        """The policy of a named preset.

        Raises:
            InputError: the name is not in `PRESETS`.
        """
        try:
            return PRESETS[name]
        except KeyError:
            raise InputError(f"preset={name!r} is unknown; expected one of {', '.join(PRESETS)}") from None

    @property
    def checkpoint_format(self) -> MatrixFormat:
        """Storage format of the checkpoint."""
        return FORMATS[self.checkpoint]

    @property
    def read_format(self) -> MatrixFormat | None:
        """Storage format of the read copy, or None."""
        return None if self.read_copy is None else FORMATS[self.read_copy]

    @property
    def key_multiple(self) -> int:
        """What K must be a multiple of."""
        read = self.read_format
        return max(self.checkpoint_format.key_multiple, 1 if read is None else read.key_multiple)

    def describe(self) -> str:
        """One line for a log: `fp16 checkpoint (stochastic rounding), nvfp4 read copy`."""
        rounding = " (stochastic rounding)" if self.stochastic_rounding else ""
        read = f"{self.read_copy} read copy" if self.read_copy else "no read copy"
        products = f", {self.dot} products" if self.dot else ""
        return f"{self.checkpoint} checkpoint{rounding}, {read}{products}"


PRESETS: dict[str, PrecisionPolicy] = {
    "exact": PrecisionPolicy(),
    "fp16-sr": PrecisionPolicy("fp16", stochastic_rounding=True),
    "dual-nvfp4": PrecisionPolicy(read_copy="nvfp4"),
    "dual-nvfp4-fp16": PrecisionPolicy("fp16", stochastic_rounding=True, read_copy="nvfp4"),
    "dual-nvfp4-fp8": PrecisionPolicy("fp8", stochastic_rounding=True, read_copy="nvfp4"),
    "dual-fp8": PrecisionPolicy(read_copy="fp8"),
    "shared-nvfp4": PrecisionPolicy("nvfp4"),
    "shared-fp8": PrecisionPolicy("fp8"),
}
"""Policies by name. The `shared-*` ones fold what they read: the baselines that dual precision is measured against."""
