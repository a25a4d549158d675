"""What the four role models share: where they work, and when their workers start."""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from rl_compat.batch import Batch, Sequences
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import ConfigError, check_type
from rl_compat.planning.types import RoleName
from rl_compat.workers.shared_plan import SharedPlan

Settings = TypeVar("Settings")
Workers = TypeVar("Workers")


class Role(ABC, Generic[Settings, Workers]):
    """A role on a pool. Its workers start at its first call, with settings that follow from the plan."""

    role: RoleName

    def __init__(
        self, settings: Callable[[], Settings], *, pool: ResourcePool, shared: SharedPlan | None = None
    ) -> None:
        """`settings` is called when the workers start; `shared` is the plan that the settings follow from."""
        self.pool = pool
        self._make_settings = settings
        self._shared = shared
        self._settings: Settings | None = None
        self._workers: Workers | None = None
        self._starting = threading.RLock()
        "held while the workers start, so that calls from several threads start them once"
        self._closed = False

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            self._settings = self._make_settings()
        return self._settings

    @property
    def workers(self) -> Workers:
        if self._closed:
            raise ConfigError(f"the {self.role} is closed")
        with self._starting:
            if self._workers is None:
                self._workers = self._start(self.settings)
            return self._workers

    def start(self) -> Self:
        """Start the workers now instead of at the first call. Raises ModelError, HardwareError or DoesNotFitError."""
        assert self.workers is not None
        return self

    def to(self, pool: ResourcePool) -> Self:
        """Move to another pool, with weights, optimizer and policy version. Returns this role.

        The plan is made again for the new pool; an error leaves the role where it is. Raises ConfigError for a role of
        `rl_compat.train`, HardwareError, or DoesNotFitError.
        """
        if self._shared is None:
            raise ConfigError(
                f"the {self.role} belongs to a run, which planned its device",
                hint="save it with `save_pretrained` and load it with `from_pretrained(path, pool=…)`",
            )
        pool = ResourcePool.given(pool)
        if pool.name != self.pool.name:
            before = self.pool
            self._shared.move(self.role, pool)
            self.pool = pool
            try:
                self._restart()
            except BaseException:
                self.pool = before
                self._shared.move(self.role, before)
                raise
            self._shared.moved(self.role)
        return self

    def close(self) -> None:
        """Free the workers and their memory. Calls raise ConfigError from then on."""
        self._workers, self._settings, self._closed = None, None, True
        if self._shared is not None:
            self._shared.release(self.role)
        gc.collect()

    def _restart(self) -> None:
        """Start workers for the present plan, and give them the state of the old ones, if those were started."""
        settings = self._make_settings()
        if self._workers is not None:
            workers = self._start(settings)
            self._copy_state(self._workers, workers)
            self._workers = workers
            gc.collect()
        self._settings = settings

    @abstractmethod
    def _start(self, settings: Settings) -> Workers:
        """Workers on the pool."""

    def _copy_state(self, old: Workers, new: Workers) -> None:
        """Give new workers what the old ones have learned."""


def batch_of(sequences: Sequences) -> Batch:
    """The tensors of the sequences that a call was given. Raises ConfigError for anything else."""
    check_type("sequences", sequences, Sequences)
    return sequences.batch


def check_update(batch: Batch, seed: int) -> None:
    """Raise ConfigError for arguments of an update that are of another type."""
    check_type("batch", batch, Batch, hint="use the `batch` of `make_experience(…)`")
    check_type("seed", seed, int)
