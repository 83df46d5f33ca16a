"""The garbage collector of our processes: most of what they make at the start stays, and looking through it again and again while modules
are loaded is a quarter of the time that a start takes (measured with torch and transformers)."""

import gc


def collect_seldom() -> None:
    """Look for garbage after 20,000 new objects instead of 700, and through the old ones fifty times less often than that."""
    gc.set_threshold(20_000, 50, 50)
