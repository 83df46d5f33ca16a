"""The words of a command, before they count: an option that is given twice is refused, and so is an empty option or argument. Otherwise the later
value would win, and an empty one, which is often a variable of the shell that is not set, would pass for one that was left out. A number has the
digits 0 to 9 and lies within its bounds. Text is UTF-8, unless it is a path. Options of a group that stand before the name of a command would be
forgotten, and so would options that have no effect together (`combinations`)."""

import math
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from orchestrator.cli.combinations import without_effect
from orchestrator.cli.hints import remember
from orchestrator.cli.options import path
from orchestrator.contracts.limits import MAX_GIVEN_REASON
from orchestrator.contracts.numbers import INT8, real, whole

EMPTY = "it is empty: give a value{}; is a variable of your shell unset?"
MAY_BE_EMPTY: Final[Mapping[str, tuple[str, ...]]] = {
    "label": ("export", "sft export"),
    "statement": ("sql",),
}
"""The commands, or groups of them, in which a parameter may be empty: `--label ""` selects what has no label; an empty statement gets a sentence
of its own."""
TWICE = "it is given twice: give it once, only one value can count"
NOT_TEXT = (
    "is not UTF-8 text (character {}): is your terminal or your shell's locale set to another encoding?"
)
"""Python reads each byte of an argument that is not UTF-8 as a lone surrogate, which no database and no JSON takes."""
BEFORE = "it stands before `{}` and would be forgotten: options of that command go behind its name"


def _is_path(param: Any) -> bool:
    described = getattr(param.type_descriptor, "parameter_info", None)
    return getattr(described, "parser", None) is path


def _may_be_empty(param: Any, command: str) -> bool:
    # The parser of paths refuses it itself, with other advice.
    places = MAY_BE_EMPTY.get(param.name, ())
    return _is_path(param) or any(f"{command} ".startswith(f"{place} ") for place in places)


def _check_text(param: Any, text: str) -> None:
    """Raise ValueError for a text that is not UTF-8, and for a reason that is too long. The name of a file may have any bytes."""
    try:
        if not _is_path(param):
            text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(NOT_TEXT.format(error.start + 1)) from None
    if param.name == "reason" and len(text) > MAX_GIVEN_REASON:
        raise ValueError(
            f"has {len(text):,} characters, and a reason may have {MAX_GIVEN_REASON}: shorten it"
        )


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
        if "" in (given if isinstance(given, list | tuple) else [given]) and not _may_be_empty(
            param, _full_name(ctx)
        ):
            raise typer.BadParameter(
                EMPTY.format("" if param.required else " or leave it out"), ctx=ctx, param=param
            )
        for text in given if isinstance(given, list | tuple) else [given]:
            try:
                if isinstance(text, str):
                    _check_text(param, text)
                    _check_number(param, text)
            except ValueError as error:
                raise typer.BadParameter(f"it {error}", ctx=ctx, param=param) from None
        if is_option and name in seen and not param.multiple and not param.count:
            raise typer.BadParameter(TWICE, ctx=ctx, param=param)
        seen.add(name)
    _check_together(command, ctx, values, order)


def _check_together(
    command: TyperCommand | TyperGroup, ctx: Any, values: dict[str, Any], order: list[Any]
) -> None:
    """Raise BadParameter for an option or argument that has no effect as the others are."""
    params: dict[str, Any] = {str(param.name): param for param in command.params}
    given = {
        str(param.name)
        for param in order
        # An argument is in the order even if it was left out.
        if isinstance(param, TyperOption)
        or (isinstance(value := values.get(param.name), str | tuple) and value)
    }
    names = {name: _named(param) for name, param in params.items()}
    if found := without_effect(_full_name(ctx), given, names):
        raise typer.BadParameter(found[1], ctx=ctx, param=params[found[0]])


def _named(param: Any) -> str:
    """As people write it."""
    long = [each for each in param.opts if each.startswith("--")]
    return long[0] if long else str(param.metavar or param.name).upper()


def _full_name(ctx: Any) -> str:
    """The name of a command without that of the program: `show rollout`."""
    above = "" if ctx.parent is None or ctx.parent.parent is None else f"{_full_name(ctx.parent)} "
    return f"{above}{ctx.info_name}"


class Command(TyperCommand):
    """A command that checks its options first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does, after the check."""
        _check(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As Typer does; the hints of its sentences carry its `-c`."""
        remember(ctx)
        return super().invoke(ctx)


def _check_before(group: TyperGroup, ctx: Any, words: list[str]) -> None:
    """Raise BadParameter for an option of the group before the name of one of its commands, which has options of its own."""
    if ctx.resilient_parsing:
        return
    _, rest, order = group.make_parser(ctx).parse_args(list(words))
    own: list[Any] = [param for param in order if param.name != "help"]
    if own and own == order and rest and rest[0] in group.commands:
        command = f"{ctx.command_path} {rest[0]}"
        raise typer.BadParameter(BEFORE.format(command), ctx=ctx, param=own[0])


class CommandGroup(TyperGroup):
    """A group of commands that checks its own options first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does, after the check."""
        _check(self, ctx, args)
        _check_before(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As Typer does; the hints of its sentences carry its `-c`."""
        remember(ctx)
        return super().invoke(ctx)


def checked(app: typer.Typer) -> None:
    """Make every command of an application, and every group, check its options."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = CommandGroup
        if group.typer_instance is not None:
            checked(group.typer_instance)
