"""Losses, one formula per file behind the port in base.py; the weights of their tokens; and the metrics of a train step."""
