"""The shared byte-level BPE tokenizer, and text files as token streams."""

import argparse
from pathlib import Path

import torch
from corpus import SEPARATOR
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"


def train_tokenizer(files: list[Path], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on `files`; every byte string round-trips exactly."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    documents = (text for file in files for text in file.read_text(encoding="utf-8").split(SEPARATOR))
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, file: Path) -> torch.Tensor:
    """Return `[tokens]` int64: every document of `file` between a bos and an eos token."""
    documents = file.read_text(encoding="utf-8").split(SEPARATOR)
    ids: list[int] = []
    for encoded in tokenizer.backend_tokenizer.encode_batch(documents, add_special_tokens=False):
        ids += [tokenizer.bos_token_id, *encoded.ids, tokenizer.eos_token_id]
    return torch.tensor(ids)


def main() -> None:
    """Train the tokenizer on the given files and save it as a tokenizer directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = train_tokenizer(args.text, args.vocab_size)
    tokenizer.save_pretrained(args.out)
    for file in args.text:
        tokens = token_stream(tokenizer, file).numel()
        print(f"{file.name}: {tokens} tokens, {file.stat().st_size / tokens:.3f} bytes/token")


if __name__ == "__main__":
    main()
