"""Measurements of the trainer's parts; each is a module with `main(argv)` and a `--json` line of bars at its end."""
