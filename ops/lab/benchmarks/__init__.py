"""Measurements against targets, run by `ops/bench NAME`: one module or package each, with `main(argv)`; `targets` lists what must hold."""
