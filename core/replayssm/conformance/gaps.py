"""The reviewed file of a subject's known gaps.

One gap a line: the test's name, optionally with its parameters as pytest prints them, a colon, and the reason. `*` and `?`
are wildcards, `#` begins a comment:

    test_trees_follow_the_model[kda]: the verify kernel has no ancestor mask yet (issue 12)

A test that is listed must fail; when it passes, the line has to go.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True)
class Gap:
    """One line: a pattern of test names, and why they fail."""

    pattern: str
    reason: str

    @property
    def test(self) -> str:
        """The test function's name, without parameters."""
        return self.pattern.partition("[")[0]

    def matches(self, name: str) -> bool:
        """Whether the pattern covers a test's name, with parameters or without."""
        # Brackets are parameters here, not a set of characters.
        pattern = self.pattern.replace("[", "[[]")
        return fnmatchcase(name, pattern) or fnmatchcase(name.partition("[")[0], pattern)


def read_gaps(path: Path | None) -> tuple[Gap, ...]:
    """The lines of a gap file; none for None.

    Raises:
        ValueError: a line without a reason.
    """
    gaps = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path else (), start=1):
        text = line.partition("#")[0].strip()
        pattern, colon, reason = text.partition(":") if text else ("", "", "")
        if text and not (colon and pattern.strip() and reason.strip()):
            raise ValueError(f"{path}:{number}: expected 'test: reason', got {line!r}")
        if text:
            gaps.append(Gap(pattern.strip(), reason.strip()))
    return tuple(gaps)
