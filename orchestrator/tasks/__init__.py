"""Tasks: the Harbor directory format, the contract with verifiers, and a generated suite.

settings (task.toml) ← harbor (a task's files: load, check, pack) ← suite (generate)
verdict (the inputs of tests/test.sh and the files that it must write)
"""
