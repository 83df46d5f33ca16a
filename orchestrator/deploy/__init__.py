"""Starting Penstock: on one machine (`stack`, `embedded`) and on a cluster (`cluster`); the run directory (`home`) and the checks before a start
(`preflight`).
"""
