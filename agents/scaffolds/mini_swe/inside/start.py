"""Starts mini-swe-agent's own command line, as its script `mini` does.

This is a separate file, because Python then searches modules next to it, not in the work directory, which the policy fills.
"""

import sys

from minisweagent.run.mini import app  # type: ignore[import-not-found]

if __name__ == "__main__":
    sys.exit(app())
