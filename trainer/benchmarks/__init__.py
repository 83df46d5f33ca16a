"""Measurements of the trainer's parts. Each is a module with `main(argv)`; with `--json` its last line has the bars."""
