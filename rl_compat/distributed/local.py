"""Workers in this process: the backend of one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from rl_compat.distributed.dispatch import dispatch_of, merge_results, split_arguments

Worker = TypeVar("Worker")


class LocalWorkerGroup(Generic[Worker]):
    """Runs worker methods here and now; the futures it returns are already done."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        assert workers, "a worker group has at least one worker"
        self._workers = list(workers)

    def run(self, method: Callable[..., Any], **arguments: Any) -> Future[Any]:
        """Call `method` (as `Worker.method`) on every worker, arguments split and results merged as it declares.

        An exception of a worker is raised by the future's `result()`.
        """
        declaration = dispatch_of(method)
        future: Future[Any] = Future()
        try:
            shares = split_arguments(arguments, declaration, len(self._workers))
            results = [
                getattr(worker, method.__name__)(**share) for worker, share in zip(self._workers, shares, strict=True)
            ]
            future.set_result(merge_results(results, declaration.merge))
        except Exception as error:
            future.set_exception(error)
        return future
