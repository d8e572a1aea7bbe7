"""Tasks end, also those that take their cancellation for an answer."""

import asyncio
import contextlib

from perfd.net import end_tasks


async def answered_at_the_same_moment() -> bool:
    """A loop whose request is answered when it is canceled, as by a busy server."""
    requests: list[asyncio.Future[None]] = []

    async def asks() -> None:
        while True:
            request: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            requests.append(request)
            # As the client of NATS does; Python 3.12 raises the cancellation.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(request, 60.0)

    task = asyncio.create_task(asks())
    await asyncio.sleep(0)
    requests[0].set_result(None)
    await end_tasks(task, again_after_s=0.01)
    return task.cancelled()


def test_a_loop_that_is_answered_at_the_moment_of_its_cancellation_ends() -> None:
    assert asyncio.run(answered_at_the_same_moment())


def test_what_a_task_cleans_up_is_not_interrupted_and_its_error_is_dropped() -> None:
    cleaned: list[str] = []

    async def works() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("all")
            raise ValueError

    async def ends() -> None:
        task = asyncio.create_task(works())
        await asyncio.sleep(0)
        await end_tasks(task)

    asyncio.run(ends())
    assert cleaned == ["all"]
