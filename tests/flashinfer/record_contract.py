"""Write the parameters of FlashInfer's functions, as an unpacked wheel has them, to contract.json.

Usage: python record_contract.py FOLDER VERSION …, for each folder the wheel of that version. Sources are parsed, not run.
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
    found = {}
    for folder, version in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        found[version] = {symbol.label: parameters(Path(folder), symbol) for symbol in SYMBOLS}
    about = (
        "Parameters of FlashInfer's functions by release, read from its wheels; null where there is no such function."
    )
    Path(__file__).with_name("contract.json").write_text(
        json.dumps({"about": about, "releases": found}, indent=1) + "\n"
    )
