"""The configuration of the demo's run, written as a user writes it."""

import time
from pathlib import Path

from ops.lab.demo.keep import is_kept
from ops.lab.run_directory import remove
from orchestrator.settings.config import FILE

KEEP_RUNS = 3
# Shares of the groups, among the installed scaffolds: for every seed, at least a tenth of every evaluation is black-box.
SCAFFOLDS = {"shell": 0.8, "mini-swe-agent": 0.2}


CONFIG = """\
# Written by ops/demo. The loss and its advantages are the defaults: CISPO as published. The limits are small, as its model and tasks are.
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
end_train_steps = {train_steps}
end_seconds = {seconds}

[sampling]
temperature = 1.0
max_new_tokens = 64

[rollout]
slots = 24
verify_slots = 8
scaffolds = {{ {scaffolds} }}
timeout_s = 60
completion_s = 60
tool_timeout_s = 60
observation_lines = 3
stall_s = 30

[sandbox]
provider = "{sandbox}"
memory_mb = 512
processes = 64
cpu_s = 60
disk_mb = 64

{servers}[trainer]
parts = 2
lr = 1e-4
permute_advantages = {control}
dtype = "{dtype}"
"""


def write_run(
    root: Path,
    *,
    seed: int,
    model: Path,
    seconds: float,
    train_steps: int = 0,
    scaffolds: dict[str, float],
    sandbox: str,
    control: bool,
    servers: str = "",
    dtype: str = "float32",
) -> Path:
    """Make a new run directory below `root`; returns the absolute path. The loop ends after `train_steps` or `seconds`, the sooner; 0: no limit."""
    root.mkdir(parents=True, exist_ok=True)
    directory = root / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    directory.mkdir()
    (directory / FILE).write_text(
        CONFIG.format(
            seed=seed,
            model=model,
            seconds=seconds,
            train_steps=train_steps,
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
    """Remove the runs below `root`, except the newest few and those whose dashboard still runs."""
    for old in sorted(path for path in root.iterdir() if path.is_dir())[:-KEEP_RUNS]:
        if not is_kept(old):
            remove(old)
