"""The `penstock` command. Imports neither torch nor transformers: training and serving run as `python -m trainer…`."""

from orchestrator.cli.main import main

__all__ = ["main"]
