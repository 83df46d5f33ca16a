"""The tier `harness` (./ops/test --tier harness) alone: it needs programs from registries."""

import os

collect_ignore_glob = [] if os.environ.get("PENSTOCK_TIER") == "harness" else ["test_*.py"]
