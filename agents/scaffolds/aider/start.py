"""Starts aider's own command line. A separate file: Python searches modules next to it, not in the work directory, which the policy fills."""

import sys

from aider.main import main  # type: ignore[import-not-found]

if __name__ == "__main__":
    sys.exit(main())
