"""Starts mini-swe-agent's own command line, as its script `mini` does.

A file of its own, because Python then searches modules beside it and not in the work directory, which the policy fills.
"""

import sys

from minisweagent.run.mini import app  # type: ignore[import-not-found]

if __name__ == "__main__":
    sys.exit(app())
