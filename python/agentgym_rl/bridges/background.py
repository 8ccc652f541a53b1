"""A loop of asyncio in a thread, for packages whose calls are coroutines."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class Background:
    """One session's loop; what one session blocks holds up no other."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine to its end and returns, or raises, what it does."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """Cancels what still runs and ends the thread."""

        async def cancelled() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.call(cancelled())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
