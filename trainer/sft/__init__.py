"""Supervised training of a policy on recorded trajectories.

corpus.py    demonstrations as arrays of ids, and the compact file that holds them
samples.py   from the steps of a rollout to demonstrations
export.py    from the data pool to that file
batches.py   length-bucketed batches with loss weights
train.py     the loop: AdamW, schedule, metrics
"""
