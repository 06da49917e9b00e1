"""What a published hybrid model is made of, read from its Hugging Face `config.json` as plain JSON."""

from replayssm.hybrid.families import FAMILIES
from replayssm.hybrid.model import HybridModel
from replayssm.hybrid.reader import parse_hybrid, read_hybrid

__all__ = ["FAMILIES", "HybridModel", "parse_hybrid", "read_hybrid"]
