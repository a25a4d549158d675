"""The rows with responses that a run learns from and is measured on, by its settings."""

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
from rl_compat.data.form.columns import Task
from rl_compat.data.order.batches import MixtureOrder, Order, PromptOrder, WholeEpochs
from rl_compat.data.read.reading import Reading, load_sources
from rl_compat.errors import DataError, ModelError
from rl_compat.trainer.setup.columns import data_columns
from rl_compat.workers.setup import Setup

Encode = Callable[[Sequence[Any], Encoding], ItemSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineData:
    """Items by index, and how many of them each name in the settings has."""

    items: tuple[Item, ...]
    counts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def order(self, config: RunConfig) -> Order:
        """Batches of indexes, source after source or as a mixture. Raises DataError when there are too few rows."""
        data, size = config.data, config.trainer.batch_size
        if not data.mixture_weights:
            return PromptOrder(len(self.items), size, shuffle=data.shuffle, seed=data.seed)
        starts = [sum(self.counts[:index]) for index in range(len(self.counts))]
        epochs = [
            WholeEpochs(count, shuffle=data.shuffle, seed=seeds.derive(data.seed, "source", index), first_row=start)
            for index, (start, count) in enumerate(zip(starts, self.counts, strict=True))
        ]
        return MixtureOrder(epochs, data.mixture_weights, size, shuffle=data.shuffle, seed=data.seed)


def training_items(setup: Setup) -> OfflineData:
    """The rows of `data.train_files`. Raises DataError, or ModelError for tokens that the model does not know."""
    data = setup.config.data
    weights = data.mixture_weights
    limits: list[int | None] | int | None = data.max_train_samples
    if data.max_train_samples is not None and weights:
        limits = [max(1, round(data.max_train_samples * weight / sum(weights))) for weight in weights]
    return _load(setup, data.train_files, _reading(setup.config, "train"), limits)


def validation_items(setup: Setup) -> OfflineData:
    """The rows of `data.val_files`; none when the settings name no held-out data."""
    data = setup.config.data
    if not data.val_files:
        return OfflineData(items=())
    return _load(setup, data.val_files, _reading(setup.config, "test"), data.max_val_samples)


def _reading(config: RunConfig, split: Any) -> Reading:
    task: Task = ALGORITHMS[config.algorithm.name].learns_from
    return Reading(task=task, split=split, columns=data_columns(config.data), bad_rows=config.data.bad_rows)


def _load(
    setup: Setup, files: Sequence[str], reading: Reading, limits: Sequence[int | None] | int | None
) -> OfflineData:
    config = setup.config
    notes: list[str] = []
    sources = load_sources(files, replace(reading, announce=notes.append), limits=limits)
    rows = [row for source in sources for row in source.rows]
    found = ENCODERS[config.algorithm.name](config)(rows, _encoding(setup))
    _check_token_ids(found.items, setup.shape.vocab_size)
    counts = _counts(found.items, [source.first_row for source in sources])
    for source, count in zip(sources, counts, strict=True):
        if config.data.mixture_weights and not count:
            raise DataError(
                f"no row of `{source.name}` can be used and `data.mixture_weights` gives it a share",
                hint="raise `data.max_prompt_length` or `data.max_response_length`, or leave the file out",
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
    """Items of each source, by the number of their row."""
    bounds = [*first_rows, float("inf")]
    return tuple(sum(low <= item.row < high for item in items) for low, high in pairwise(bounds))


def _check_token_ids(items: Sequence[Item], vocab_size: int) -> None:
    examples = [example for item in items for example in item.examples]
    largest = max(max(*example.prompt_ids, *example.response_ids) for example in examples)
    if largest >= vocab_size:
        raise ModelError(
            f"the tokenizer gives the id {largest} and the model knows the ids below {vocab_size}",
            hint="set `model.tokenizer` to the tokenizer that the model was trained with",
        )


ENCODERS: Mapping[str, Callable[[RunConfig], Encode]] = {
    "sft": lambda config: partial(supervised_items, loss_on=config.algorithm.sft.loss_on),
    "dpo": lambda config: preference_items,
    "kto": lambda config: labelled_items,
    "reward_model": lambda config: scored_items,
}
"by algorithm: from its settings to what makes items of rows"
