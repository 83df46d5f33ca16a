"""Scaffolds: the agents that Penstock trains. `base` is their protocol, `find` loads one by its name, path or entry point.

White boxes (`shell`) call the native route from Python; black boxes (`mini_swe`, the presets) are programs in a sandbox that speak a public wire.
"""
