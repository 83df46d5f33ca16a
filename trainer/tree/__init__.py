"""Prefix-tree merging: every token that samples share is forwarded once, exactly.

    samples ──pack──▶ packs ──trie──▶ one compressed trie per pack ──plan──▶ flat order, positions, rectangles
            ──forward──▶ one pass of an unmodified Hugging Face model, whose attention is attention.attend

`trie` and `plan` are numpy only; `attention` knows torch, `forward` knows transformers, `pack` knows samples.
"""
