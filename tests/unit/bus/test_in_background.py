"""Work in the background of a body: which error comes out, and that a cancellation stays one."""

import asyncio
from collections.abc import Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from orchestrator.bus.feed import in_background

pytestmark = pytest.mark.anyio

BODY, BACKGROUND = ValueError("body"), OSError("background")


async def forever() -> None:
    await anyio.sleep_forever()


async def fails() -> None:
    raise BACKGROUND


async def fails_at_its_end() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        raise BACKGROUND


async def fails_in_a_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(fails)
        await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("background", "own", "comes_out"),
    [
        (forever, BODY, BODY),
        (forever, pytest.fail.Exception("body"), None),
        (fails, None, BACKGROUND),
        (fails_in_a_group, None, BACKGROUND),
        (fails_at_its_end, BODY, BODY),
        (forever, ExceptionGroup("the body's own", [BODY]), None),
    ],
)
async def test_an_error_comes_out_as_it_is_and_that_of_the_body_first(
    background: Callable[[], object], own: BaseException | None, comes_out: BaseException | None
) -> None:
    with anyio.fail_after(60), pytest.raises(BaseException) as caught:
        async with in_background(background):  # type: ignore[arg-type]
            if own is None:
                await anyio.sleep_forever()
            await checkpoint()  # the background begins
            raise own or AssertionError
    assert caught.value is (comes_out or own)


async def test_an_error_of_the_background_comes_out_also_if_the_body_fails_because_of_it() -> None:
    with anyio.fail_after(60), pytest.raises(BaseException) as caught:
        async with in_background(fails):
            try:
                await anyio.sleep_forever()
            finally:
                raise BODY
    assert caught.value is BACKGROUND


async def test_a_cancelled_body_is_cancelled_and_nothing_else() -> None:
    with anyio.move_on_after(0.01) as scope:
        async with in_background(forever):
            await anyio.sleep_forever()
    assert scope.cancelled_caught

    async def body() -> None:
        async with in_background(forever):
            await anyio.sleep_forever()

    task = asyncio.ensure_future(body())
    await checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
