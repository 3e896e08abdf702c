# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""Waits for fetches in asyncio's event loop, without a thread for each."""

import asyncio

from . import _native


async def arrival(fetch: "_native.Fetch") -> None:
    """Returns when the range of ``fetch`` is resident."""
    loop = asyncio.get_running_loop()
    while True:
        woken: "asyncio.Future[None]" = loop.create_future()

        def wake(woken: "asyncio.Future[None]" = woken) -> None:
            # From a thread of the space. A loop that is closed has nobody who waits.
            try:
                loop.call_soon_threadsafe(_finish, woken)
            except RuntimeError:
                pass

        if fetch.poll(wake):
            return
        await woken


def _finish(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
