"""The policy's tokenizer: whole words, single digits, bytes for everything else.

A policy of a million parameters learns to copy a word from the task into a command only if the word has the same id in
both places. GPT-2's convention of one id for "word" and another for " word" makes that impossible (measured: greedy held-out
success 6 % against 55 %). Therefore the split below never joins a space to a word, and a piece that is in the vocabulary is
always taken whole (`ignore_merges`, without any merges). A piece that is not in the vocabulary becomes its UTF-8 bytes,
so any text encodes and decodes exactly.

Vocabulary, in id order: 256 byte tokens, FRAME, the pieces of pieces.txt, SPECIAL, MARKERS, MACROS.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from trainer.policy.vocabulary import PIECES, SPLIT, read_pieces

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

FRAME = ("user", "system", "\n\n")  # names of roles, and the blank line after the reasoning
# Special tokens: `encode` never makes them from text once `encode_special_tokens` is set (see `load_tokenizer`), so a task
# that quotes one cannot forge a turn. Renderers emit them by id.
SPECIAL = (
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
# Markers that renderers write as text inside an assistant turn, so they must be recognised in text.
MARKERS = ("<think>", "</think>")
# Text that the format repeats in every turn, one token each. It is plain text without a special meaning.
CALL_OPEN = '\n{"name": "bash", "arguments": {"command": "'
CALL_CLOSE = '"}}\n'
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo "
MACROS = (CALL_OPEN, CALL_CLOSE, SUBMIT, "assistant\n")


def build_tokenizer(pieces: Path = PIECES) -> Tokenizer:
    """The tokenizer made from a pieces file; the same file gives the same bytes of tokenizer.json."""
    to_byte_level = _byte_alphabet()
    vocabulary = {symbol: index for index, symbol in enumerate(to_byte_level.values())}
    for piece in (*FRAME, *read_pieces(pieces)):
        spelled = "".join(to_byte_level[byte] for byte in piece.encode())
        vocabulary.setdefault(spelled, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*MARKERS, *MACROS)])
    return tokenizer


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model directory, set so that special-token strings in a text stay text."""
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ValueError(
            f"{directory} has no tokenizer.json: make a policy with `python -m trainer.policy --out DIR`"
        )
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def _byte_alphabet() -> dict[int, str]:
    """The printable stand-in of every byte in ByteLevel tokenizers (GPT-2's table), in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return dict(sorted(table.items()))
