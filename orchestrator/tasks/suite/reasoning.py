"""Questions about numbers whose answer one command computes."""

from collections.abc import Mapping
from typing import Final

from orchestrator.tasks.suite.checks import answer_is
from orchestrator.tasks.suite.family import Family, Scene, answers
from orchestrator.tasks.suite.split_rng import Dice

Arguments = Mapping[str, str]


def _draw_add(dice: Dice) -> dict[str, str]:
    a, b = dice.random.sample(range(10, 100), 2)
    return {"a": str(a), "b": str(b)}


def _build_add(_: Dice, given: Arguments) -> Scene:
    a, b = given["a"], given["b"]
    think = "add numbers"
    return Scene(
        checks=(answer_is(str(int(a) + int(b))),),
        good=answers(think, f"echo $(({a}+{b}))"),
        bad=answers(think, f"echo $(({a}-{b}))", f"echo {a}+{b}", f"echo $(({a}+{a}))", f"echo {a} {b}"),
    )


def _draw_file(dice: Dice) -> dict[str, str]:
    return {"f": dice.file_names(1)[0]}


def _build_sum(dice: Dice, given: Arguments) -> Scene:
    file, think = given["f"], "sum column"

    def prices() -> str:
        return "".join(f"{word},{dice.number(2, 40)}\n" for word in dice.words(dice.number(3, 6)))

    text = dice.content(prices)
    return Scene(
        files={file: text},
        checks=(answer_is(str(sum(int(line.split(",")[1]) for line in text.split()))),),
        good=answers(think, "awk -F, '{s+=$2}END{print s}' " + file),
        bad=answers(
            think,
            "awk '{s+=$2}END{print s}' " + file,
            "awk -F, '{s+=$1}END{print s}' " + file,
            "awk -F, '{print $2}' " + file,
            f"cat {file}",
        ),
    )


def _build_max(dice: Dice, given: Arguments) -> Scene:
    file, think = given["f"], "largest number"

    def numbers() -> str:
        return "".join(f"{n}\n" for n in dice.random.sample(range(2, 400), dice.number(4, 7)))

    def mistakes_show(text: str) -> bool:
        """No wrong command may find the largest number by luck."""
        lines = text.split()
        largest = max(lines, key=int)
        return largest not in (lines[0], lines[-1], max(lines))

    text = dice.content(numbers, mistakes_show)
    return Scene(
        files={file: text},
        checks=(answer_is(max(text.split(), key=int)),),
        good=answers(think, f"sort -n {file} | tail -n 1"),
        bad=answers(
            think,
            f"sort {file} | tail -n 1",
            f"sort -n {file} | head -n 1",
            f"tail -n 1 {file}",
            f"sort -n {file}",
        ),
    )


def _draw_match(dice: Dice) -> dict[str, str]:
    word, stem = dice.words(2)
    return {"w": word, "f": f"{stem}.{dice.extension()}"}


def _build_match(dice: Dice, given: Arguments) -> Scene:
    word, file, think = given["w"], given["f"], "count matches"

    def lines() -> str:
        total = dice.number(4, 9)
        return "".join(
            " ".join(dice.random.choices((word, *dice.words(2)), (2, 1, 1), k=2)) + "\n" for _ in range(total)
        )

    def mistakes_show(text: str) -> bool:
        """The count differs from 0, from the number of all lines, and from the number of lines without the word."""
        found = [word in line.split() for line in text.splitlines()]
        return sum(found) not in (0, len(found), found.count(False))

    text = dice.content(lines, mistakes_show)
    return Scene(
        files={file: text},
        checks=(answer_is(str(sum(word in line.split() for line in text.splitlines()))),),
        good=answers(think, f"grep -c {word} {file}"),
        bad=answers(
            think,
            f"grep {word} {file}",
            f"grep -c {file} {word}",
            f"grep -v -c {word} {file}",
            f"wc -l < {file}",
        ),
    )


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        name="add_nums",
        domain="reasoning",
        level=1,
        phrasings=(
            "what is {a} plus {b}",
            "add {a} and {b}",
            "{a} apples and {b} more, how many in all",
            "{a} and {b}: sum?",
        ),
        draw=_draw_add,
        build=_build_add,
    ),
    Family(
        name="sum_col",
        domain="reasoning",
        level=2,
        phrasings=(
            "sum the numbers in column 2 of {f}",
            "add up column 2 of {f}",
            "{f} lists items and prices, what do all cost",
            "{f}: column 2 total?",
        ),
        draw=_draw_file,
        build=_build_sum,
    ),
    Family(
        name="max_num",
        domain="reasoning",
        level=2,
        phrasings=(
            "find the largest number in {f}",
            "print the max number of {f}",
            "no number in {f} is more than which one",
            "{f}: max?",
        ),
        draw=_draw_file,
        build=_build_max,
    ),
    Family(
        name="count_match",
        domain="reasoning",
        level=1,
        phrasings=(
            "count the lines of {f} with {w}",
            "how many lines of {f} have {w}",
            "{w} is on some lines of {f}, on how many",
            "{f}: lines with {w}?",
        ),
        draw=_draw_match,
        build=_build_match,
    ),
)
