"""Examples at the end of each command's `--help`. A test parses every one against the real options."""

from collections.abc import Iterator, Sequence

import typer

EXAMPLES: dict[str, Sequence[str]] = {
    "init": ["penstock init runs/first --model models/qwen3 --name first"],
    "config": [
        "penstock config -c runs/first --set queue.capacity=40",
        "penstock config --explain",
        "penstock config trainer.lr queue -c runs/first",
        "penstock config --explain -c runs/first --json",
    ],
    "env": ['eval "$(penstock env -c runs/first)"; psql "$DATABASE_URL"'],
    "up": [
        "penstock up -c runs/first",
        "penstock up -c runs/first --set rollout.slots=16 --only runner,verifier",
    ],
    "down": ["penstock down -c runs/first"],
    "doctor": [
        "penstock doctor",
        "penstock doctor --sandbox --provider bubblewrap --json",
        "penstock doctor --sandbox -c runs/first",
        "penstock doctor --cluster ops/cluster/topology.toml -c runs/first --monitor http://10.0.0.2:8222",
        "penstock doctor --cluster -c runs/first --write-probe",
    ],
    "reconcile": ["penstock reconcile -c runs/first"],
    "status": ["penstock status -c runs/first", "penstock status -c runs/first --json"],
    "run pause": ['penstock run pause -c runs/first --reason "the disk is full"'],
    "run resume": ["penstock run resume -c runs/first"],
    "run cancel": ['penstock run cancel 201 -c runs/first --reason "its test is wrong"'],
    "run mix": [
        "penstock run mix -c runs/first",
        "penstock run mix coding=2 general=1 agent=1 reasoning=1 -c runs/first",
        "penstock run mix --configured -c runs/first --json",
    ],
    "run retry": ['penstock run retry -c runs/first --reason "the bad tasks are cancelled"'],
    "run end": ['penstock run end -c runs/first --reason "good enough"'],
    "orchestrator": ["penstock orchestrator -c runs/first"],
    "gateway": ["penstock gateway -c runs/first --server http://127.0.0.1:30000"],
    "runner": ["penstock runner -c runs/first --name runner-2"],
    "verifier": ["penstock verifier -c runs/first --name verifier-2"],
    "web": ["penstock web -c runs/first"],
    "trainer": ["penstock trainer -c runs/first", "penstock trainer -c runs/first --retry"],
    "trainer verify": ["penstock trainer verify -c runs/first --batch 3 --dtype float32 --json"],
    "trainer tree": ["penstock trainer tree -c runs/first --batch 3 --svg tree.svg --groups 4"],
    "sql": [
        'penstock sql -c runs/first "select state, count(*) from groups where run_id = 1 group by state"',
        'penstock sql -c runs/first --csv --limit 0 "select * from rollout_summary where run_id = 1" > rollouts.csv',
        "penstock sql -c runs/first - < question.sql",
    ],
    "logs": [
        "penstock logs -c runs/first --level warning --since 15m",
        "penstock logs -c runs/first -p trainer -p gateway --follow",
        "penstock logs -c runs/first --group 201 --lines 0 --json",
    ],
    "tail": [
        "penstock tail -c runs/first",
        "penstock tail -c runs/first --rollout 301 --lines 100 --no-follow",
    ],
    "top": ["penstock top -c runs/first", "penstock top -c runs/first --once --json"],
    "compare": [
        "penstock compare -c runs/first -c runs/second",
        "penstock compare -c runs/first -c runs/second --key loss --json",
    ],
    "show rollout": [
        "penstock show rollout 301 -c runs/first",
        "penstock show rollout 301 -c runs/first --attempt 1 --full",
        "penstock show rollout 301 -c runs/first --step 0 --tokens",
        "penstock show rollout 301 -c runs/first --html rollout-301.html",
    ],
    "show group": ["penstock show group 201 -c runs/first", "penstock show group 201 -c runs/first --json"],
    "show batch": ["penstock show batch 3 -c runs/first --full"],
    "audit": ["penstock audit -c runs/first --ledger submitted.txt --sample 100"],
    "size": [
        "penstock size ops/cluster/topology.toml --from-run runs/first --set tool_s=4 --set runners.0.slots=64",
        "penstock size --from-run runs/first --check --save workload.toml",
        "penstock size ops/cluster/topology.toml --workload workload.toml --json",
    ],
    "scale": [
        "penstock scale ops/cluster/topology.toml runners=1..4 servers=1",
        "penstock scale mine.toml gateways=3 --target systemd --out hosts -c runs/first --write > scale.sh && sh scale.sh",
        "penstock scale mine.toml runners=2 -t kubernetes -o cluster -c runs/first --json",
    ],
    "drain": [
        "penstock drain runner runner-2 -c runs/first --wait",
        'penstock drain server http://10.0.0.5:30000 -c runs/first --reason "a new driver"',
        "penstock drain gateway gateway@host-b -c runs/first --undo",
    ],
    "rewind": [
        'penstock rewind -c runs/first --to-batch 7 --reason "it collapsed in batch 8"',
        'penstock rewind -c runs/first --to-batch 7 --tests suite/corrected --reason "test_3 accepted an empty file"',
    ],
    "rescore": [
        'penstock rescore -c runs/first --tests suite/corrected --reason "test_3 failed on every answer"'
    ],
    "prune": [
        "penstock prune -c runs/first --dry-run",
        "penstock prune -c runs/first --run first --dead-letters 30",
    ],
    "images bootstrap": [
        "penstock images bootstrap debian:12 -c runs/first",
        "penstock images bootstrap debian:12 --include python3 --include git --name python:3.11 -c runs/first",
    ],
    "images build": [
        "penstock images build suite/train/a-task -c runs/first",
        "penstock images build images/tools --name tools:1 -c runs/first --verbose",
    ],
    "images import": ["penstock images import python.tar --name python:3.11 -c runs/first"],
    "images export": ["penstock images export python:3.11 python.tar -c runs/first"],
    "images list": ["penstock images list -c runs/first", "penstock images list -c runs/first --json"],
    "images prune": [
        "penstock images prune -c runs/first",
        "penstock images prune tools:1 --cache -c runs/first",
    ],
    "tasks publish": [
        "penstock tasks publish suite/train -c runs/first",
        "penstock tasks publish suite/heldout -c runs/first --purpose eval --label before",
    ],
    "tasks check": [
        "penstock tasks check suite/train suite/heldout",
        "penstock tasks check mine.jsonl -c runs/first",
        "penstock tasks check mine --build -c runs/first",
    ],
    "tasks vet": [
        "penstock tasks vet suite/train --html vetted.html",
        "penstock tasks vet mine -c runs/first --until controls-hold --json",
    ],
    "tasks import harbor": [
        "penstock tasks import harbor downloaded/set --to tasks",
        "penstock tasks import harbor https://example.org/tasks.git --revision v1.0 --to tasks",
        "penstock tasks import harbor registry.json --dataset mine@1.0 --to tasks --json",
        "penstock tasks import harbor downloaded/set --to tasks --move-key environment.base_image",
    ],
    "tasks import terminal-bench": ["penstock tasks import terminal-bench downloaded/tasks --to tasks"],
    "tasks import swe": [
        "penstock tasks import swe rows.jsonl --to tasks -c runs/first",
        "penstock tasks import swe rows.jsonl --to tasks --repositories clones --base python:3.11",
    ],
    "tasks generate": ["penstock tasks generate suite --train 400 --heldout 100 --seed 1"],
    "scaffold new": ["penstock scaffold new my-agent --kind manifest"],
    "scaffold list": ["penstock scaffold list", "penstock scaffold list --json"],
    "scaffold install": ["penstock scaffold install opencode codex"],
    "scaffold check": ["penstock scaffold check ./my-agent --only unavailable"],
    "dead list": ["penstock dead list -c runs/first"],
    "dead show": ["penstock dead show g7 -c runs/first"],
    "dead retry": ['penstock dead retry g7 -c runs/first --reason "the disk has room again"'],
    "dead drop": ["penstock dead drop m7 -c runs/first"],
    "sft record": [
        "penstock sft record --out demos.st --count 1000 --scaffold shell=0.85,mini-swe-agent=0.15"
    ],
    "sft export": ["penstock sft export -c runs/first --out good.st --min-performance 1"],
    "sft train": ["penstock sft train --corpus demos.st --model policy --out trained"],
    "export atif": ["penstock export atif -c runs/first --out atif --purpose eval"],
    "export inspect": ["penstock export inspect -c runs/first --out logs --group 201 --group 202"],
    "export parquet": ["penstock export parquet -c runs/first --out data --state trained --versions 3..9"],
    "export otlp": [
        "penstock export otlp -c runs/first --out traces --since 1h",
        "penstock export otlp -c runs/first --out sent --endpoint http://127.0.0.1:4318 --no-content",
    ],
    "export tensorboard": ["penstock export tensorboard -c runs/first --out board"],
    "export wandb": ["penstock export wandb -c runs/first --out offline"],
    "eval": [
        "penstock eval -c runs/first --suite suite/heldout --policy 7",
        "penstock eval -c runs/first --suite suite/heldout --greedy --label heldout-greedy --json",
    ],
    "eval list": ["penstock eval list -c runs/first"],
    "eval show": ["penstock eval show heldout -c runs/first", "penstock eval show heldout --policy 7 --json"],
    "cluster render": [
        "penstock cluster render ops/cluster/topology.toml --target kubernetes --out cluster",
        "penstock cluster render ops/cluster/examples/nodes4.toml --target slurm --out job",
        "penstock cluster render mine.toml -t systemd -o hosts --force",
    ],
    "cluster check": [
        "penstock cluster check ops/cluster/topology.toml",
        "penstock cluster check cluster --kubernetes 1.34",
    ],
    "cluster wait": ["penstock cluster wait -c runs/first --run --timeout 60"],
    "metrics targets": ["penstock metrics targets -c runs/first"],
}


def named(app: typer.Typer, above: str = "") -> Iterator[tuple[str, object]]:
    """Every command by its full name, with Typer's object for it."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        yield f"{above}{name}", command
    for group in app.registered_groups:
        if group.typer_instance is None:
            continue
        own = group.name or group.typer_instance.info.name or ""
        if group.typer_instance.info.invoke_without_command:
            yield f"{above}{own}", group
        yield from named(group.typer_instance, f"{above}{own} ")


def attach(app: typer.Typer) -> None:
    """Put the examples below the options of their commands."""
    for name, command in named(app):
        if lines := EXAMPLES.get(name):
            title = "Examples:" if len(lines) > 1 else "Example:"
            command.epilog = "\n".join(["\b", title, *(f"  {line}" for line in lines)])  # type: ignore[attr-defined]
