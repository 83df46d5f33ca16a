"""`python -m trainer.picture`: the prefix tree of a stored train step, drawn."""
