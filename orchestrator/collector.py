"""The garbage collector of our processes: most of what they make at the start stays, and looking through it again and again while modules
are loaded is a quarter of the time that a start takes (measured with torch and transformers)."""

import gc


def collect_seldom() -> None:
    """Look at the youngest after 20,000 new objects instead of 700; at the older ones as often as usual in proportion."""
    gc.set_threshold(20_000, 10, 10)


def keep_loaded(*, seldom: bool) -> None:
    """What a start has loaded is never looked through again. What comes now: `seldom`, or as Python does by itself, where an object may hold
    large memory for as long as it is not looked at."""
    gc.collect()
    gc.freeze()
    if seldom:
        collect_seldom()
    else:
        gc.set_threshold(700, 10, 10)
