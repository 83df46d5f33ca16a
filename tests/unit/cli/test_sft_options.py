"""Options of `penstock sft`."""

import pytest

from orchestrator.cli.sft import read_shares


def test_shares_of_scaffolds_are_read_as_written() -> None:
    assert read_shares("shell=0.85, mini-swe-agent=0.15") == {"shell": 0.85, "mini-swe-agent": 0.15}
    assert read_shares("shell") == {"shell": 1.0}
    for share in ("much", "1_0", "nan", "1e400", "-1"):
        with pytest.raises(
            ValueError, match=f"'shell={share}' is not of the form name=share: the share must be"
        ):
            read_shares(f"shell={share}")
    with pytest.raises(ValueError, match="'shell' has two shares"):
        read_shares("shell=1,shell=2")
