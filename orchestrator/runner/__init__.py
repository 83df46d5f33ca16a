"""The runner and the verifier: one rollout attempt (`rollout_runner`), one verification (`verify_runner`), and their shared parts."""
