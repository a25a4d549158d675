"""Weights in Ray's object store, for rollouts on other nodes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_compat.errors import ModelError


class RayStore:
    """Bytes in the object store of a running Ray cluster, for as long as something refers to their key."""

    def __init__(self, *, timeout_seconds: float = 300.0) -> None:
        """`timeout_seconds` is the longest wait for one bucket."""
        self._timeout = timeout_seconds

    def put(self, data: Tensor) -> object:
        import ray

        key: object = ray.put(data.numpy())
        return key

    def get(self, key: object) -> Tensor:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        reference: Any = key
        try:
            data = ray.get(reference, timeout=self._timeout)
        except (RayError, GetTimeoutError) as error:
            raise ModelError(f"the weights in Ray's object store cannot be read: {error}") from error
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(data)

    def drop(self, keys: Sequence[object]) -> None:
        """Ray frees bytes when nothing refers to their key."""
