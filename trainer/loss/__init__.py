"""Losses, one formula per file behind the port in base.py; what weighs their tokens; and the metrics of a train step."""
