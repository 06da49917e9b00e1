"""Write the parameters of FlashInfer's functions, as an unpacked wheel has them, to contract.json.

Usage: python record_contract.py [--check] FOLDER VERSION …, for each folder the wheel of that version. Sources are parsed,
not run. With --check nothing is written, and the status is 1 where a wheel is not as it was recorded.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

from replayssm_flashinfer.surface import SYMBOLS


def parameters(folder, symbol):
    """Names of positional and of keyword-only parameters, None where the function is not."""
    file = folder.joinpath(*symbol.module.split(".")).with_suffix(".py")
    if not file.exists():
        return None
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == symbol.name:
            return {"positional": [a.arg for a in node.args.args], "keyword": [a.arg for a in node.args.kwonlyargs]}
    return None


if __name__ == "__main__":
    arguments, file = sys.argv[1:], Path(__file__).with_name("contract.json")
    checking = arguments[0] == "--check"
    found = {}
    for folder, version in zip(arguments[checking::2], arguments[checking + 1 :: 2], strict=True):
        found[version] = {symbol.label: parameters(Path(folder), symbol) for symbol in SYMBOLS}
    if checking:
        recorded = json.loads(file.read_text(encoding="utf-8"))["releases"]
        differing = [version for version, facts in found.items() if recorded.get(version) != facts]
        sys.exit(f"not as recorded: {', '.join(differing)}" if differing else 0)
    about = (
        "Parameters of FlashInfer's functions by release, read from its wheels; null where there is no such function."
    )
    file.write_text(json.dumps({"about": about, "releases": found}, indent=1) + "\n", encoding="utf-8")
