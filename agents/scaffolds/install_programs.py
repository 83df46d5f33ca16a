"""Installs the programs of scaffolds: `PYTHONPATH=.:agents python3 -m scaffolds.install_programs MODULE:ATTRIBUTE …`."""

import signal
import sys

from scaffolds.find import find
from scaffolds.programs import install, place_of


def main(names: list[str]) -> int:
    """Install the programs of these scaffolds. Raises ValueError if one needs no program or is not found."""
    for name in names:
        program = find(name).manifest.program
        if program is None:
            raise ValueError(f"the scaffold {name!r} needs no program")
        if install(program, say=say):
            say(f"installed {program.name} in {place_of(program)}")
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    # ends the program that installs, and removes its directory
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as problem:
        print(f"penstock: {problem}", file=sys.stderr)
        sys.exit(1)
