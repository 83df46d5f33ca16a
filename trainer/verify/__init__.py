"""`python -m trainer.verify`: does training on merged trees equal training on one row per sample?

stored.py     a batch from the data pool, and the checkpoint from which it was trained
weights.py    the weights from which the batch was trained
merged.py     gradients as the trainer makes them, taken before the optimizer moves anything
vanilla.py    the same from plain Hugging Face, one row per sample
precision.py  float64 where Hugging Face uses float32
rounding.py   the rounding errors of bfloat16, merged and alone
compare.py    the differences, compared with their bounds
"""
