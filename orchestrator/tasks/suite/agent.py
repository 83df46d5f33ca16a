"""Moving, copying and deleting files; in one family, the agent must first find out which file is meant."""

from collections.abc import Mapping
from typing import Final

from orchestrator.tasks.suite.checks import file_is, is_absent
from orchestrator.tasks.suite.family import Family, Scene, chain, changes
from orchestrator.tasks.suite.split_rng import Dice
from orchestrator.tasks.suite.words import EXTENSIONS

Arguments = Mapping[str, str]


def _draw_rename(dice: Dice) -> dict[str, str]:
    f, g = dice.file_names(2)
    return {"f": f, "g": g}


def _build_rename(dice: Dice, given: Arguments) -> Scene:
    old, new, think = given["f"], given["g"], "move file"
    text = dice.lines(2, 4)
    return Scene(
        files={old: text},
        checks=(file_is(new, text), is_absent(old)),
        good=changes(think, f"mv {old} {new}"),
        bad=changes(think, f"mv {new} {old}", f"cp {old} {new}", f"rm {old}", f"cat {old}"),
    )


def _draw_copy(dice: Dice) -> dict[str, str]:
    folder, stem = dice.words(2)
    return {"d": folder, "f": f"{stem}.{dice.extension()}"}


def _build_copy(dice: Dice, given: Arguments) -> Scene:
    folder, file, think = given["d"], given["f"], "copy file"
    text = dice.lines(2, 4)
    return Scene(
        files={file: text},
        checks=(file_is(f"{folder}/{file}", text), file_is(file, text)),
        good=(
            *changes(think, f"mkdir -p {folder} && cp {file} {folder}/"),
            chain(("make folder", f"mkdir -p {folder}"), (think, f"cp {file} {folder}/")),
        ),
        bad=(
            *changes(think, f"mkdir -p {folder} && mv {file} {folder}/", f"cp {file} {folder}"),
            *changes(think, f"mkdir -p {file} && cp {folder} {file}/"),
            *changes("make folder", f"mkdir -p {folder}"),
        ),
    )


def _draw_delete(dice: Dice) -> dict[str, str]:
    return {"d": dice.words(1)[0], "e": dice.extension()}


def _build_delete(dice: Dice, given: Arguments) -> Scene:
    folder, extension, think = given["d"], given["e"], "delete files"
    other = dice.random.choice([e for e in EXTENSIONS if e != extension])
    stems = dice.words(dice.number(3, 5))
    endings = [extension, other, *dice.random.choices((extension, other), k=len(stems) - 2)]
    files = {f"{folder}/{s}.{e}": dice.lines(1, 2) for s, e in zip(stems, endings, strict=True)}
    return Scene(
        files=files,
        checks=tuple(
            is_absent(path) if path.endswith(f".{extension}") else file_is(path, text)
            for path, text in files.items()
        ),
        good=changes(think, f"rm {folder}/*.{extension}"),
        bad=changes(
            think,
            f"rm {folder}/*.{other}",
            f"rm *.{extension}",
            f"rm {folder}/*",
            f"rm {folder}/{extension}",
            f"ls {folder}",
        ),
    )


def _draw_find(dice: Dice) -> dict[str, str]:
    word, stem = dice.words(2)
    return {"w": word, "g": f"{stem}.{dice.extension()}"}


def _build_find(dice: Dice, given: Arguments) -> Scene:
    word, new = given["w"], given["g"]
    stems = [s for s in dice.words(6) if s not in (word, new.partition(".")[0])][: dice.number(3, 4)]
    names = [f"{stem}.{dice.extension()}" for stem in stems]
    target, other = dice.random.sample(names, 2)

    def lines_for(name: str) -> str:
        return dice.content(lambda: dice.lines(1, 3), lambda t: (word in t.split()) == (name == target))

    files = {name: lines_for(name) for name in names}
    search, copy = ("find file", f"grep -l {word} *"), "copy file"
    return Scene(
        files=files,
        checks=(file_is(new, files[target]), file_is(target, files[target])),
        good=(chain(search, (copy, f"cp {target} {new}")),),
        bad=(
            chain(search, (copy, f"cp {other} {new}")),
            chain(search, (copy, f"mv {target} {new}")),
            chain(search, (copy, f"cp {new} {target}")),
            chain(search),
            chain((copy, f"cp {word} {new}")),
        ),
    )


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        name="rename",
        domain="agent",
        level=1,
        phrasings=(
            "rename {f} to {g}",
            "move {f} to {g}",
            "{f} should be called {g}",
            "{f} is now {g}",
        ),
        draw=_draw_rename,
        build=_build_rename,
    ),
    Family(
        name="copy_dir",
        domain="agent",
        level=2,
        phrasings=(
            "make folder {d} and copy {f} into it",
            "copy {f} into a new folder {d}",
            "{d} should be a folder with a copy of {f}",
            "new folder {d}, copy of {f} in it",
        ),
        draw=_draw_copy,
        build=_build_copy,
    ),
    Family(
        name="del_ext",
        domain="agent",
        level=1,
        phrasings=(
            "delete the {e} files in {d}",
            "remove all {e} files from {d}",
            "{d} should have no {e} files",
            "keep all but the {e} files of {d}",
        ),
        draw=_draw_delete,
        build=_build_delete,
    ),
    Family(
        name="find_copy",
        domain="agent",
        level=2,
        calls=2,
        phrasings=(
            "find the file with {w} and copy it to {g}",
            "copy the file that has {w} to {g}",
            "{g} should be a copy of the one file with {w}",
            "file with {w}: also as {g}",
        ),
        draw=_draw_find,
        build=_build_find,
    ),
)
