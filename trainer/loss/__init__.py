"""Losses, one formula per file, and the metrics of a train step."""
