"""What the data pool can hold and how fast: `ops/bench pool`. See `__main__` for what is measured and how."""
