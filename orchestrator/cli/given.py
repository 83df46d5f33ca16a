"""The words of a command, before they count: an option that is given twice is refused, and so is an empty option or argument. Otherwise the later
value would win, and an empty one, which is often a variable of the shell that is not set, would pass for one that was left out. A number has the
digits 0 to 9 and lies within its bounds."""

import math
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from orchestrator.cli.options import path
from orchestrator.contracts.numbers import INT8, real, whole

EMPTY = "it is empty: give a value{}; is a variable of your shell unset?"
MAY_BE_EMPTY = ("label", "statement")
"""`--label ""` selects what has no label; an empty statement gets a sentence of its own."""
TWICE = "it is given twice: give it once, only one value can count"


def _may_be_empty(param: Any) -> bool:
    # The parser of paths refuses it itself, with other advice.
    described = getattr(param.type_descriptor, "parameter_info", None)
    return param.name in MAY_BE_EMPTY or getattr(described, "parser", None) is path


def _check_number(param: Any, text: str) -> None:
    """Raise ValueError for a text that is not a number of this option or argument."""
    described = param.type_descriptor
    info = described.parameter_info
    if getattr(info, "parser", None) is not None or described.annotation not in (int, float):
        return
    least, most = getattr(info, "min", None), getattr(info, "max", None)
    if described.annotation is int:
        whole(text, least=-INT8 if least is None else int(least), most=INT8 if most is None else int(most))
    else:
        real(text, least=-math.inf if least is None else least, most=math.inf if most is None else most)


def _check(command: TyperCommand | TyperGroup, ctx: Any, words: list[str]) -> None:
    """Raise BadParameter for the first wrong option. A plain flag may come twice: it means the same."""
    if ctx.resilient_parsing:
        return
    values, _, order = command.make_parser(ctx).parse_args(list(words))
    if any(param.name == "help" for param in order):
        return
    seen: set[str] = set()
    param: Any
    for param in order:
        is_option = isinstance(param, TyperOption)
        if is_option and param.is_flag and not param.secondary_opts:
            continue
        name = param.name or param.opts[0]
        given = values.get(name)
        if "" in (given if isinstance(given, list | tuple) else [given]) and not _may_be_empty(param):
            raise typer.BadParameter(
                EMPTY.format("" if param.required else " or leave it out"), ctx=ctx, param=param
            )
        for text in given if isinstance(given, list | tuple) else [given]:
            try:
                if isinstance(text, str):
                    _check_number(param, text)
            except ValueError as error:
                raise typer.BadParameter(f"it {error}", ctx=ctx, param=param) from None
        if is_option and name in seen and not param.multiple and not param.count:
            raise typer.BadParameter(TWICE, ctx=ctx, param=param)
        seen.add(name)


class Command(TyperCommand):
    """A command that checks its options first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does, after the check."""
        _check(self, ctx, args)
        return super().parse_args(ctx, args)


class CommandGroup(TyperGroup):
    """A group of commands that checks its own options first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does, after the check."""
        _check(self, ctx, args)
        return super().parse_args(ctx, args)


def checked(app: typer.Typer) -> None:
    """Make every command of an application, and every group, check its options."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = CommandGroup
        if group.typer_instance is not None:
            checked(group.typer_instance)
