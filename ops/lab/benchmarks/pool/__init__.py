"""The capacity and speed of the data pool: `ops/bench pool`. `__main__` lists the measurements and methods."""
