"""The offline training and validation data of a run, from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import RunConfig
from rl_compat.data.encode.items import Encoding, Item, ItemEncoder
from rl_compat.data.encode.prompts import check_token_ids
from rl_compat.data.encode.training_data import check_shares, counts_of, order_of, sample_limits
from rl_compat.data.form.columns import Task
from rl_compat.data.order.batches import Order
from rl_compat.data.order.fingerprint import Fingerprint
from rl_compat.data.read.reading import Reading, load_sources
from rl_compat.data.read.records import Records
from rl_compat.models.chat import ChatEncoder
from rl_compat.trainer.setup.objects import PythonObjects, data_columns
from rl_compat.workers.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineData:
    """Items by index, and the number of items of each source."""

    items: tuple[Item, ...]
    counts: tuple[int, ...] = ()
    fingerprint: Fingerprint | None = None
    notes: tuple[str, ...] = ()

    def order(self, config: RunConfig) -> Order:
        """Batches of indices over all sources or a mixture. Raises DataError if there are too few rows."""
        data, size = config.data, config.trainer.batch_size
        how: dict[str, Any] = {"shuffle": data.shuffle, "seed": data.seed, "fingerprint": self.fingerprint}
        return order_of(self.counts, data.mixture_weights, size, **how)


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
    loaded = load_sources(files, replace(reading, announce=notes.append), limits=limits)
    found = ItemEncoder(config.algorithm.name, encoding_of(config, setup.chat)).encode_all(loaded.rows)
    examples = [example for item in found.items for example in item.examples]
    check_token_ids(((*item.prompt_ids, *item.response_ids) for item in examples), setup.shape.vocab_size)
    counts = counts_of([item.row for item in found.items], loaded.sources)
    check_shares(counts, loaded.sources, config.data.mixture_weights)
    return OfflineData(items=found.items, counts=counts, fingerprint=loaded.fingerprint, notes=(*notes, *found.notes))


def encoding_of(config: RunConfig, chat: ChatEncoder) -> Encoding:
    """How the settings say that rows with responses are encoded."""
    data = config.data
    return Encoding(
        chat=chat,
        max_prompt_length=data.max_prompt_length,
        max_response_length=data.max_response_length,
        overlong=data.overlong_prompts,
        bad_rows=data.bad_rows,
        learns_prompt=config.algorithm.name == "sft" and config.algorithm.sft.loss_on == "all",
    )
