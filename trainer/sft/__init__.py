"""Supervised training of a policy on recorded trajectories.

corpus.py    demonstrations as arrays of ids, and the compact file that holds them
batches.py   length-bucketed batches with loss weights, and the copy auxiliary
forward.py   a fast forward pass over Qwen3 weights for short dense batches
train.py     the loop: AdamW, schedule, metrics
"""
