"""The runner and the verifier: one rollout attempt (`rollout_runner`), one verification (`verify_runner`), and their shared parts.

`open_sandbox` starts a sandbox; `blackbox` and `whitebox` run a scaffold in it; `grade` runs the tests and reads their verdict.
"""
