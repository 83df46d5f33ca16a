"""Installs the programs of scaffolds: `PYTHONPATH=.:agents python3 -m scaffolds.install_programs MODULE:ATTRIBUTE …`."""

import sys

from scaffolds.find import find
from scaffolds.programs import install, place_of


def main(names: list[str]) -> int:
    """Install the programs of these scaffolds. Raises ValueError if one needs no program or is not found."""
    for name in names:
        program = find(name).manifest.program
        if program is None:
            raise ValueError(f"the scaffold {name!r} needs no program")
        if install(program):
            print(f"installed {program.name} in {place_of(program)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as problem:
        print(f"penstock: {problem}", file=sys.stderr)
        sys.exit(1)
