"""Programs that rendered files are held against. The tier `cluster` installs them and fails without; elsewhere a test of a missing one is skipped."""

import os
import shutil

import pytest


def wants(*programs: str, root: bool = False) -> pytest.MarkDecorator:
    """Skips the test where one of `programs` is missing, or root where it must be root, outside the tier."""
    missing = [program for program in programs if shutil.which(program) is None]
    if root and os.getuid() != 0:
        missing.append("root")
    return pytest.mark.skipif(
        bool(missing) and os.environ.get("PENSTOCK_TIER") != "cluster",
        reason=f"not here: {', '.join(missing)}; ./ops/test --tier cluster installs what it needs",
    )
