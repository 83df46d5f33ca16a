"""How the command line names the arguments of the functions that it calls: errors name an argument, a person has written an option."""

from orchestrator.contracts.errors import ArgumentError

_OPTIONS = {"suite": "label", "version": "policy"}
"""Arguments whose option has another name: those of `penstock eval`."""


def with_option(error: ArgumentError) -> str:
    """The sentence of an error, with the option in place of the argument.

    >>> with_option(ArgumentError("group_size", "0 is not a number")), with_option(ArgumentError("suite", "'a' was evaluated"))
    ('--group-size 0 is not a number', "--label 'a' was evaluated")
    """
    name = _OPTIONS.get(error.argument, error.argument)
    return f"--{name.replace('_', '-')} {error.problem}"
