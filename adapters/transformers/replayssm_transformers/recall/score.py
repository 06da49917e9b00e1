"""How many answers are right, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Z95 = 1.959963984540054
"""Of a normal distribution, 95 % lie within so many standard deviations."""


def wilson(right: int, asked: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for a share: E. B. Wilson, "Probable inference" (1927)."""
    if asked == 0:
        return 0.0, 1.0
    share, spread = right / asked, z * z / asked
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / asked + spread / asked / 4) / (1 + spread)
    # At the ends one bound is exact, which rounding would miss.
    return (0.0 if right == 0 else middle - half), (1.0 if right == asked else middle + half)


@dataclass(frozen=True)
class Score:
    """Answers of one policy beside those of the fp32 recurrence.

    Attributes:
        asked: questions.
        right: answered right.
        lost: right in the fp32 recurrence and wrong here.
        won: the other way around.
    """

    asked: int
    right: int
    lost: int
    won: int

    @classmethod
    def of(cls, given: Tensor, answers: Tensor, reference: Tensor) -> Score:
        """From tokens `[B, Q]`: what the policy answered, what is right, and what the fp32 recurrence answered."""
        mine, theirs = given == answers, reference == answers
        counts = (mine, theirs & ~mine, mine & ~theirs)
        right, lost, won = (int(x.sum()) for x in counts)
        return cls(answers.numel(), right, lost, won)

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % confidence interval."""
        return wilson(self.right, self.asked)

    def as_data(self) -> dict[str, Any]:
        """Plain JSON data."""
        low, high = self.interval
        return {**vars(self), "accuracy": self.accuracy, "interval_95": [low, high]}
