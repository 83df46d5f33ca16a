"""penstock images: bootstrap, build, import, export, list, prune."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli import tables
from orchestrator.cli.bar import busy
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, SetOption, path
from orchestrator.cli.terminal import plain
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import Home

if TYPE_CHECKING:
    from sandboxes.images.settings import ImageSettings
    from sandboxes.images.store import Image, ImageStore

app = typer.Typer(no_args_is_help=True)
NameOption = Annotated[
    str, typer.Option("--name", help="The name that stands for the image, as in FROM: debian:12.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the output of the program that makes it.")
]


def _store(config: Path, overrides: list[str] | None) -> tuple[ImageStore, ImageSettings]:
    """The store and the settings of a run. ConfigurationError if its images are off."""
    from orchestrator.settings.config import load
    from sandboxes.images.settings import ImageSettings

    section = load(Home.at(config).file, tuple(overrides or ())).sandbox.images
    settings = ImageSettings(**section.model_dump())
    store = settings.store()
    if store is None:
        raise ConfigurationError(
            'sandbox.images.directory is empty: name the directory that keeps images, such as ".penstock/images"'
        )
    return store, settings


def _made(what: str, make: Callable[[], Image], *, as_json: bool) -> None:
    """Run `make`, and say which image came of it. Its errors are the user's."""
    from sandboxes.base import ImageRefused, SandboxError

    try:
        with busy(what):
            image = make()
    except (ImageRefused, SandboxError) as error:
        raise ConfigurationError(str(error)) from error
    if as_json:
        typer.echo(tables.line(_fields(image)))
        return
    typer.echo(f"{image.reference}")
    typer.echo(
        f"{image.files:,} files, {image.bytes >> 20:,} MB, work directory {plain(image.work)}, from {plain(image.source)}",
        err=True,
    )
    for written, digest in image.substitutes.items():
        typer.echo(f"in place of {plain(written)}: sha256:{digest[:12]}", err=True)
    for volume in _closed(image):
        typer.echo(
            f"VOLUME {plain(volume)} stays read-only, at least in part: it is the system's, or the image serves programs from it",
            err=True,
        )


def _closed(image: Image) -> tuple[str, ...]:
    from sandboxes.images.places import closed

    return closed(image.root, image.work, image.env, image.volumes)


def _fields(image: Image, names: tuple[str, ...] = ()) -> dict[str, object]:
    return {
        "digest": image.reference,
        "names": list(names),
        "work": image.work,
        "env": dict(image.env),
        "architecture": image.architecture,
        "files": image.files,
        "bytes": image.bytes,
        "source": image.source,
        "substitutes": dict(image.substitutes),
        "volumes": list(image.volumes),
        "read_only_volumes": list(_closed(image)),
        "created": image.created,
    }


def _log(verbose: bool) -> Callable[[str], None] | None:
    if not verbose:
        return None

    def show(text: str) -> None:
        for line in text.splitlines():
            typer.echo(plain(line), err=True)

    return show


@app.command()
def bootstrap(
    base: Annotated[str, typer.Argument(help="debian:12, debian:13, ubuntu:24.04, …")],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    name: NameOption = "",
    include: Annotated[
        list[str] | None, typer.Option("--include", help="A package to install too; may be repeated.")
    ] = None,
    mirror: Annotated[str, typer.Option(help="The URL of the distribution's mirror.")] = "",
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a base image from a distribution's package mirror alone, by debootstrap."""
    from sandboxes.images.bootstrap import bootstrap

    store, settings = _store(config, overrides)
    make = partial(
        bootstrap, store, settings, base, name=name, include=include or (), mirror=mirror, log=_log(verbose)
    )
    _made(f"making {base}", lambda: anyio.run(make), as_json=as_json)


@app.command()
def build(
    directory: Annotated[Path, typer.Argument(help="The directory of a Dockerfile, or a task.", parser=path)],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    name: NameOption = "",
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build a Dockerfile by buildah, shut off from this machine. Of a task: what its rollouts would build."""
    from orchestrator.tasks.environment import build_context
    from orchestrator.tasks.harbor import CONTEXT, load
    from sandboxes.images.build import Builder

    store, settings = _store(config, overrides)
    builder = Builder(store, settings, _log(verbose))
    if (directory / "task.toml").is_file():
        task = load(directory)
        context = build_context(task.bundle.below(CONTEXT))
        make = partial(builder.built, context, again=True)
    else:
        make = partial(builder.build, directory, name=name)
    _made(f"building {directory}", lambda: anyio.run(make), as_json=as_json)
    if name and (directory / "task.toml").is_file():
        store.name(name, anyio.run(builder.built, context))


@app.command(name="import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="An OCI archive or directory, or the directory of a root file system.", parser=path
        ),
    ],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    name: NameOption = "",
    as_json: JsonOption = False,
) -> None:
    """Import an image that was made elsewhere."""
    store, _ = _store(config, overrides)
    _made(f"importing {source}", lambda: store.add(source, name=name), as_json=as_json)


@app.command()
def export(
    image: Annotated[str, typer.Argument(help="The name or digest of an image.")],
    file: Annotated[Path, typer.Argument(help="The archive to write.", parser=path)],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
) -> None:
    """Write an image to an OCI archive, for another machine."""
    from sandboxes.base import SandboxError
    from sandboxes.images.export import write_archive

    store, _ = _store(config, overrides)
    try:
        with busy(f"exporting {image}"), store.using(image) as found:
            write_archive(found, file)
    except SandboxError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error


@app.command(name="list")
def list_(config: ConfigOption = HERE, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """The images of this machine, the newest first."""
    store, _ = _store(config, overrides)
    found = store.all()
    if as_json:
        for image, names in found:
            typer.echo(tables.line(_fields(image, names)))
        return
    rows = [
        (
            image.digest[:12],
            ", ".join(names),
            f"{image.bytes >> 20:,}",
            f"{image.files:,}",
            image.work,
            f"{datetime.fromtimestamp(image.created, UTC):%Y-%m-%d %H:%M}",
            image.source,
        )
        for image, names in found
    ]
    tables.print_rows(("digest", "names", "MB", "files", "work directory", "created (UTC)", "from"), rows)


@app.command()
def prune(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(help="Names or digests; without any: all images without a name of yours."),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Also the layers that earlier builds left for later ones.")
    ] = False,
) -> None:
    """Remove images that no sandbox uses. An image that a task built is built again when it is needed."""
    from sandboxes.base import SandboxError
    from sandboxes.images.build import AUTOMATIC, Builder

    store, settings = _store(config, overrides)

    def kept(image: Image, names: tuple[str, ...]) -> bool:
        if images:
            return image.digest not in wanted
        return any(not each.startswith(AUTOMATIC) for each in names)

    try:
        wanted = {store.find(each).digest for each in images or ()}
        pruned = store.prune(keep=kept)
        if cache:
            anyio.run(Builder(store, settings).clear)
    except SandboxError as error:
        raise ConfigurationError(str(error)) from error
    in_use = f"; {tables.counted(pruned.in_use, 'image')} in use" if pruned.in_use else ""
    typer.echo(f"removed {tables.counted(len(pruned.removed), 'image')}, {pruned.bytes >> 20:,} MB{in_use}")
