"""Prefix-tree merging: every token that samples share is forwarded once, exactly, in bounded memory.

    step tree (orchestrator.contracts.branch) ──trie──▶ one compressed trie ──plan──▶ flat order, positions, squares and rectangles
        ──passes──▶ parts of the tree within the budget ──execute──▶ forward and backward of an unmodified Hugging Face model, pass by pass

`pack` puts a train step's samples, loss edges and passes together. `trie`, `plan` and `passes` are numpy only; `attention` (with `flex`) knows
torch, `forward` knows transformers, `path` holds the keys and values above a pass. The guide: ops/guides/merging.md.
"""
