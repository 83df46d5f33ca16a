"""The configuration of the demo's run, written like any user's."""

import shutil
import time
from pathlib import Path

from orchestrator.config import FILE
from orchestrator.demo.keep import is_kept

KEEP_RUNS = 3
# Shares of the groups, among the scaffolds that are installed: at least a tenth of every evaluation is black-box, whatever the seed draws.
SCAFFOLDS = {"shell": 0.8, "mini-swe-agent": 0.2}


CONFIG = """\
# Written by ops/demo. Two settings differ from the defaults and are said openly: advantages are divided by their group's
# standard deviation, and negative ones are scaled by 0.2, which keeps a tiny policy's copying intact.
[run]
name = "demo"
seed = {seed}

[policy]
model = "{model}"

[queue]
batch_groups = 10
group_size = 4
max_staleness = 2
capacity = 40
window_fraction = 0.3

[stage]
name = "main"
domains = {{ reasoning = 0.25, coding = 0.25, agent = 0.25, general = 0.25 }}
max_turns = 4
max_context = 512
end_seconds = {seconds}

[sampling]
temperature = 1.0
max_new_tokens = 64

[rollout]
slots = 24
verify_slots = 8
scaffolds = {{ {scaffolds} }}
timeout_s = 60
stall_s = 30

[sandbox]
provider = "{sandbox}"

{servers}[reward]
advantage_std = true

[trainer]
parts = 2
lr = 2e-4
negative_scale = 0.2
permute_advantages = {control}
dtype = "{dtype}"
"""


def write_run(
    root: Path,
    *,
    seed: int,
    model: Path,
    seconds: float,
    scaffolds: dict[str, float],
    sandbox: str,
    control: bool,
    servers: str = "",
    dtype: str = "float32",
) -> Path:
    """Make a new run directory below `root` and return it, absolute."""
    root.mkdir(parents=True, exist_ok=True)
    directory = root / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    directory.mkdir()
    (directory / FILE).write_text(
        CONFIG.format(
            seed=seed,
            model=model,
            seconds=seconds,
            scaffolds=", ".join(f'"{name}" = {share}' for name, share in scaffolds.items()),
            sandbox=sandbox,
            control=str(control).lower(),
            servers=servers,
            dtype=dtype,
        ),
        encoding="utf-8",
    )
    return directory.resolve()


def prune(root: Path) -> None:
    """Remove the runs below `root` but the newest few, and those whose dashboard was kept."""
    for old in sorted(path for path in root.iterdir() if path.is_dir())[:-KEEP_RUNS]:
        if not is_kept(old):
            shutil.rmtree(old, ignore_errors=True)
