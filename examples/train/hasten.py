"""Let the long heads of a trained model forget faster, and evaluate the model again.

Multiplies the decay rate A of the first half of the heads of each recurrent layer, which `train.py` starts with
a long memory, by --factor. The step is noted in train-log.json, whose held-out figures become the new model's
(losses with the delta rule of scan.py, which a CPU runs three times as fast as the class's own); those of the
model as trained stay beside them.

    python hasten.py --model models/kda --factor 3 --heldout corpus/heldout-*.txt --out models/kda-faster
"""

import argparse
import json
import math
import platform
import shutil
from pathlib import Path

import torch
import transformers
from evaluate import full_report
from safetensors.torch import load_file, save_file
from scan import ATTENTION, fast_training, register_attention
from transformers import AutoModelForCausalLM, AutoTokenizer


def hasten(tensors: dict[str, torch.Tensor], factor: float) -> list[str]:
    """Multiply the decay rates of the first half of each layer's heads by `factor`, in place; return what changed."""
    changed = [name for name in tensors if name.endswith("A_log")]
    for name in changed:
        rates = tensors[name].view(-1)
        rates[: (len(rates) + 1) // 2] += math.log(factor)
    return changed


def main() -> None:
    """Copy the model with faster heads, then evaluate the copy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--factor", type=float, required=True)
    parser.add_argument("--heldout", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eval-length", type=int, default=8192)
    parser.add_argument("--eval-long", type=int, default=32768)
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(args.model / name, args.out / name)
    tensors = load_file(args.model / "model.safetensors")
    changed = hasten(tensors, args.factor)
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    log = json.loads((args.model / "train-log.json").read_text())
    log["heldout_as_trained"] = log["heldout"]
    log["hastened"] = {
        "factor": args.factor,
        "heads": "the first half",
        "tensors": changed,
        "evaluated_on": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    register_attention()
    model = AutoModelForCausalLM.from_pretrained(args.out, attn_implementation=ATTENTION).to(device)
    tokenizer = AutoTokenizer.from_pretrained(args.out)
    log["heldout"] = full_report(model, tokenizer, args.heldout, args.eval_length, args.eval_long, fast_training)
    (args.out / "train-log.json").write_text(json.dumps(log, indent=1) + "\n")


if __name__ == "__main__":
    main()
