"""Tasks: the Harbor directory format, the contract with verifiers, and a generated suite.

settings (task.toml) ← harbor (a task's files: load, check, pack) ← suite (generate)
verdict (what tests/test.sh is given and must leave)
"""
