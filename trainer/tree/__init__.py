"""Prefix-tree merging: every token that samples share is forwarded once, exactly, in bounded memory.

    step tree (orchestrator.trajectory.branch) ──trie──▶ one compressed trie ──plan──▶ flat order, positions, squares and rectangles
        ──passes──▶ parts of the tree within the budget ──execute──▶ forward and backward of an unmodified Hugging Face model, pass by pass

`pack` combines a train step's samples, loss edges and passes. `trie`, `plan` and `passes` use only numpy; `attention` (with `flex`) uses
torch, `forward` uses transformers, `path` holds the keys and values above a pass. The guide: ops/guides/merging.md.
"""
