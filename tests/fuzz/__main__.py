"""`ops/fuzz TARGET`: bytes that a fuzzer makes up by following which lines they reach (atheris, libFuzzer). Exits with 0 if nothing was
found. Otherwise it prints the raised error, and keeps the bytes in DIRECTORY/crash-…: pass that file to `--replay`.
"""

import argparse
import sys
from pathlib import Path

import atheris

LOOKED_AT = ["orchestrator", "sandboxes", "scaffolds", "tarfile", "tomllib"]
# The other targets' own lines add nothing, and if they are instrumented, conversations of `forest` are never freed.
if "planted" in sys.argv:
    LOOKED_AT.append("tests.fuzz")
with atheris.instrument_imports(include=LOOKED_AT, enable_loader_override=False):
    from tests.fuzz.targets import SEEDS, TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(
        "ops/fuzz", description="Feed anything at all to what reads what others send."
    )
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: 60)")
    parser.add_argument(
        "--runs", type=int, help="how many inputs, instead of how long: the same on every machine"
    )
    parser.add_argument("--seed", type=int, default=1, help="0: another one each time (default: 1)")
    parser.add_argument("--replay", type=Path, help="feed this file alone")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("var/fuzz"),
        help="keeps what reached something new (default: var/fuzz)",
    )
    given = parser.parse_args()
    place = given.directory / given.target
    corpus = place / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=LOOKED_AT, enable_loader_override=False):
        target = TARGETS[given.target](place)
    for n, seed in enumerate(SEEDS.get(given.target, ())):
        (corpus / f"seed-{n}").write_bytes(seed)
    if given.replay:
        target(given.replay.read_bytes())
        return
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={given.seconds}" if given.runs is None else f"-runs={given.runs}",
            f"-seed={given.seed}",
            f"-artifact_prefix={place}/",
            "-max_len=4096",
            "-len_control=0",
            "-print_final_stats=1",
            str(corpus),
        ],
        target,
    )
    atheris.Fuzz()


main()
