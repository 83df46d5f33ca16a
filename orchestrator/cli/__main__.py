"""`python -m orchestrator.cli` is `penstock`."""

from orchestrator.cli.main import main

main()
