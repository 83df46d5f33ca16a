"""Programs that check rendered files. The tier `cluster` installs them and fails without them; elsewhere, a test is skipped if its program is
missing."""

import os
import shutil

import pytest


def wants(*programs: str, root: bool = False) -> pytest.MarkDecorator:
    """Outside the tier, skips the test if one of `programs` is missing, or if the user is not root and must be."""
    missing = [program for program in programs if shutil.which(program) is None]
    if root and os.getuid() != 0:
        missing.append("root")
    return pytest.mark.skipif(
        bool(missing) and os.environ.get("PENSTOCK_TIER") != "cluster",
        reason=f"not here: {', '.join(missing)}; ./ops/test --tier cluster installs what it needs",
    )
