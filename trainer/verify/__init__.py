"""`python -m trainer.verify`: is training on merged trees what training on one row per sample would be?

stored.py     a batch from the data pool, and the checkpoint that it was trained from
merged.py     gradients as the trainer makes them, taken before the optimizer moves anything
vanilla.py    the same from plain Hugging Face, one row per sample
precision.py  float64 where Hugging Face asks for float32
rounding.py   what bfloat16 rounds, merged and alone
compare.py    the differences, held against their bounds
"""
