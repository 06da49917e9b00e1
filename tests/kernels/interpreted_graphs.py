"""The kit's graph cases under Triton's interpreter, where a replay is the call itself on the same fixed tensors.

Usage: TRITON_INTERPRET=1 python interpreted_graphs.py LAYER
"""

from __future__ import annotations

import sys

from replayssm.conformance import CoreSubject
from replayssm.conformance.suite import BackendConformance
from replayssm.recurrence import LayerKind

CASES = (
    "test_replayed_steps_follow_the_model",
    "test_replayed_trees_follow_the_model",
    "test_replayed_calls_on_slots",
    "test_padding_is_ignored_by_replayed_calls",
    "test_graph_replay",
)


def main(kind: str, *names: str) -> int:
    """Run the cases; an assertion is the failure."""
    suite = type("Suite", (BackendConformance,), {"subject": CoreSubject("triton")})()
    for name in names or CASES:
        getattr(suite, name)(layer=LayerKind(kind), seed=5)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
