"""Small Python modules, written or changed; the checks read them and do not run them."""

from collections.abc import Mapping
from typing import Final

from orchestrator.tasks.suite.checks import module_gives
from orchestrator.tasks.suite.family import Family, Scene, chain, changes
from orchestrator.tasks.suite.split_rng import Dice

Arguments = Mapping[str, str]


def _draw_rename(dice: Dice) -> dict[str, str]:
    module, a, b = dice.words(3)
    return {"m": module, "a": a, "b": b}


def _build_rename(dice: Dice, given: Arguments) -> Scene:
    module, old, new, think = given["m"], given["a"], given["b"], "rename function"
    file = f"{module}.py"
    text = dice.content(lambda: f"def {old}():\n    return {dice.number(2, 99)}\n")
    number = int(text.split()[-1])
    return Scene(
        files={file: text},
        checks=(module_gives(file, {f"{new}()": number, old: None}),),
        good=changes(think, f"sed -i 's/{old}/{new}/' {file}"),
        bad=changes(
            think,
            f"sed 's/{old}/{new}/' {file}",
            f"sed -i 's/{new}/{old}/' {file}",
            f"mv {old}.py {new}.py",
            f"mv {file} {new}.py",
        ),
    )


def _draw_const(dice: Dice) -> dict[str, str]:
    module, function = dice.words(2)
    return {"m": module, "a": function, "n": str(dice.number(2, 99))}


def _build_const(_: Dice, given: Arguments) -> Scene:
    module, function, n, think = given["m"], given["a"], given["n"], "write function"
    return Scene(
        checks=(module_gives(f"{module}.py", {f"{function}()": int(n)}),),
        good=changes(think, f"echo 'def {function}(): return {n}' > {module}.py"),
        bad=changes(
            think,
            f"echo 'def {function}(): print({n})' > {module}.py",
            f"echo 'def {module}(): return {n}' > {function}.py",
            f"echo 'def {function}(): return {n}'",
            f"echo 'def {function}(): return' > {module}.py",
        ),
    )


def _draw_mul(dice: Dice) -> dict[str, str]:
    module, function = dice.words(2)
    return {"m": module, "a": function, "n": str(dice.number(3, 99))}


def _build_mul(_: Dice, given: Arguments) -> Scene:
    module, function, n, think = given["m"], given["a"], given["n"], "write function"
    return Scene(
        checks=(module_gives(f"{module}.py", {f"{function}({x})": x * int(n) for x in (0, 1, 7)}),),
        good=changes(think, f"echo 'def {function}(x): return x*{n}' > {module}.py"),
        bad=changes(
            think,
            f"echo 'def {function}(x): return x+{n}' > {module}.py",
            f"echo 'def {function}(x): print(x*{n})' > {module}.py",
            f"echo 'def {module}(x): return x*{n}' > {function}.py",
            f"echo 'def {function}(): return x*{n}' > {module}.py",
        ),
    )


def _build_fix(dice: Dice, given: Arguments) -> Scene:
    module, name, new = given["m"], given["a"], given["n"]
    file = f"{module}.py"
    numbers = [str(n) for n in range(2, 100) if str(n) != new]
    text = dice.content(
        lambda: f"{name} = {dice.random.choice(numbers)}\n",
        lambda t: t.split()[-1] not in new and new not in t.split()[-1],
    )
    old = text.split()[-1]
    read_step, edit_thought = ("read file", f"cat {file}"), "set value"
    return Scene(
        files={file: text},
        checks=(module_gives(file, {name: int(new)}),),
        good=(chain(read_step, (edit_thought, f"sed -i 's/{old}/{new}/' {file}")),),
        bad=(
            chain(read_step, (edit_thought, f"sed 's/{old}/{new}/' {file}")),
            chain(read_step, (edit_thought, f"sed -i 's/{new}/{old}/' {file}")),
            chain(read_step, (edit_thought, f"sed -i 's/{name}/{new}/' {file}")),
            chain(read_step),
        ),
    )


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        name="rename_fn",
        domain="coding",
        level=2,
        phrasings=(
            "rename function {a} to {b} in {m}.py",
            "in {m}.py change the name {a} to {b}",
            "{a} in {m}.py should be called {b}",
            "{m}.py: {a} is now {b}",
        ),
        draw=_draw_rename,
        build=_build_rename,
    ),
    Family(
        name="const_fn",
        domain="coding",
        level=2,
        phrasings=(
            "write {m}.py with a function {a} that returns {n}",
            "make {m}.py, in it {a} returns {n}",
            "in a new {m}.py, calling {a} should give {n}",
            "{m}.py needs {a}, giving {n}",
        ),
        draw=_draw_const,
        build=_build_const,
    ),
    Family(
        name="mul_fn",
        domain="coding",
        level=2,
        phrasings=(
            "write {m}.py with a function {a} that returns x times {n}",
            "make {m}.py, in it {a} multiplies x by {n}",
            "in a new {m}.py, calling {a} with x should give {n} times x",
            "{m}.py needs {a}, x times {n}",
        ),
        draw=_draw_mul,
        build=_build_mul,
    ),
    Family(
        name="fix_value",
        domain="coding",
        level=2,
        calls=2,
        phrasings=(
            "in {m}.py set the value of {a} to {n}",
            "change {a} to {n} in {m}.py",
            "{a} in {m}.py is wrong, it should be {n}",
            "{m}.py: value of {a} is now {n}",
        ),
        draw=_draw_mul,
        build=_build_fix,
    ),
)
