"""The offline training and validation data of a run, from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from rl_compat import seeds
from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import RunConfig
from rl_compat.data.encode.items import (
    Encoding,
    Item,
    ItemSet,
    labelled_items,
    preference_items,
    scored_items,
    supervised_items,
)
from rl_compat.data.encode.prompts import check_token_ids
from rl_compat.data.encode.training_data import sample_limits
from rl_compat.data.form.columns import Task
from rl_compat.data.order.batches import MixtureOrder, Order, PromptOrder, WholeEpochs
from rl_compat.data.read.reading import Reading, load_sources
from rl_compat.data.read.records import Records
from rl_compat.errors import DataError
from rl_compat.trainer.setup.objects import PythonObjects, data_columns
from rl_compat.workers.setup import Setup

Encode = Callable[[Sequence[Any], Encoding], ItemSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineData:
    """Items by index, and the number of items of each source."""

    items: tuple[Item, ...]
    counts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def order(self, config: RunConfig) -> Order:
        """Batches of indices over all sources or a mixture. Raises DataError if there are too few rows."""
        data, size = config.data, config.trainer.batch_size
        if not data.mixture_weights:
            return PromptOrder(len(self.items), size, shuffle=data.shuffle, seed=data.seed)
        starts = [sum(self.counts[:index]) for index in range(len(self.counts))]
        epochs = [
            WholeEpochs(count, shuffle=data.shuffle, seed=seeds.derive(data.seed, "source", index), first_row=start)
            for index, (start, count) in enumerate(zip(starts, self.counts, strict=True))
        ]
        return MixtureOrder(epochs, data.mixture_weights, size, shuffle=data.shuffle, seed=data.seed)


def training_items(setup: Setup, objects: PythonObjects = PythonObjects()) -> OfflineData:
    """The rows of `data.train_files`. Raises DataError, and ModelError for tokens without an embedding."""
    data = setup.config.data
    limits = sample_limits(data.max_train_samples, data.mixture_weights)
    sources = objects.sources(data.train_files, key="data.train_files")
    return _load(setup, sources, _reading(setup.config, "train"), limits)


def validation_items(setup: Setup, objects: PythonObjects = PythonObjects()) -> OfflineData:
    """The rows of `data.val_files`, empty without any."""
    data = setup.config.data
    if not data.val_files:
        return OfflineData(items=())
    sources = objects.sources(data.val_files, key="data.val_files")
    return _load(setup, sources, _reading(setup.config, "test"), data.max_val_samples)


def _reading(config: RunConfig, split: Any) -> Reading:
    task: Task = ALGORITHMS[config.algorithm.name].learns_from
    return Reading(task=task, split=split, columns=data_columns(config.data), bad_rows=config.data.bad_rows)


def _load(
    setup: Setup, files: Sequence[str | Records], reading: Reading, limits: Sequence[int | None] | int | None
) -> OfflineData:
    config = setup.config
    notes: list[str] = []
    sources = load_sources(files, replace(reading, announce=notes.append), limits=limits)
    rows = [row for source in sources for row in source.rows]
    found = ENCODERS[config.algorithm.name](config)(rows, _encoding(setup))
    examples = [example for item in found.items for example in item.examples]
    check_token_ids(((*item.prompt_ids, *item.response_ids) for item in examples), setup.shape.vocab_size)
    counts = _counts(found.items, [source.first_row for source in sources])
    for source, count in zip(sources, counts, strict=True):
        if config.data.mixture_weights and not count:
            raise DataError(
                f"no row of `{source.name}` can be used, and `data.mixture_weights` gives it a share",
                hint="raise `data.max_prompt_length` or `data.max_response_length`, or remove the file",
            )
    return OfflineData(items=found.items, counts=counts, notes=(*notes, *found.notes))


def _encoding(setup: Setup) -> Encoding:
    data = setup.config.data
    return Encoding(
        chat=setup.chat,
        max_prompt_length=data.max_prompt_length,
        max_response_length=data.max_response_length,
        overlong=data.overlong_prompts,
        bad_rows=data.bad_rows,
    )


def _counts(items: Sequence[Item], first_rows: Sequence[int]) -> tuple[int, ...]:
    """The number of items of each source, by their row numbers."""
    bounds = [*first_rows, float("inf")]
    return tuple(sum(low <= item.row < high for item in items) for low, high in pairwise(bounds))


ENCODERS: Mapping[str, Callable[[RunConfig], Encode]] = {
    "sft": lambda config: partial(supervised_items, loss_on=config.algorithm.sft.loss_on),
    "dpo": lambda config: preference_items,
    "kto": lambda config: labelled_items,
    "reward_model": lambda config: scored_items,
}
"algorithm to a function from its settings to its encoder"
