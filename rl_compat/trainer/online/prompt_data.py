"""The training and validation prompts of a run, from its settings."""

from __future__ import annotations

from collections.abc import Sequence

from rl_compat.config.types import DataConfig
from rl_compat.data.encode.prompts import build_prompts, check_token_ids
from rl_compat.data.encode.training_data import TrainingData, load_training, should_stream
from rl_compat.data.read.reading import Reading, load_rows
from rl_compat.data.read.records import Records
from rl_compat.trainer.setup.objects import PythonObjects, data_columns
from rl_compat.trajectory import Prompt
from rl_compat.workers.setup import Setup


def load_training_data(setup: Setup, objects: PythonObjects = PythonObjects()) -> tuple[TrainingData, tuple[str, ...]]:
    """The prompts of `data.train_files`, in memory or streamed, and notes about them."""
    data = setup.config.data
    notes: list[str] = []
    sources = objects.sources(data.train_files, key="data.train_files")
    training = load_training(
        sources,
        Reading(
            task="prompts", split="train", columns=data_columns(data), bad_rows=data.bad_rows, announce=notes.append
        ),
        chat=setup.chat,
        max_prompt_length=data.max_prompt_length,
        overlong=data.overlong_prompts,
        max_samples=data.max_train_samples,
        weights=data.mixture_weights,
        streaming=streams(data, sources, setup.hardware.host.ram_limit_bytes),
    )
    check_token_ids((prompt.token_ids for prompt in training.sample()), setup.shape.vocab_size)
    return training, (*notes, *training.notes)


def streams(data: DataConfig, sources: Sequence[str | Records], memory_bytes: int) -> bool:
    """Whether training data is streamed: by the setting, or because its rows would need too much memory."""
    if data.streaming != "auto":
        return data.streaming
    return data.max_train_samples is None and should_stream(sources, memory_bytes=memory_bytes)


def load_validation_prompts(
    setup: Setup, objects: PythonObjects = PythonObjects()
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts of `data.val_files`, empty without any, and notes about dropped and cut rows."""
    data = setup.config.data
    notes: list[str] = []
    rows = load_rows(
        objects.sources(data.val_files, key="data.val_files"),
        split="test",
        columns=data_columns(data),
        max_samples=data.max_val_samples,
        bad_rows=data.bad_rows,
        announce=notes.append,
    )
    built = build_prompts(
        rows,
        chat=setup.chat,
        max_prompt_length=data.max_prompt_length,
        overlong=data.overlong_prompts,
        bad_rows=data.bad_rows,
    )
    check_token_ids((prompt.token_ids for prompt in built.prompts), setup.shape.vocab_size)
    return built.prompts, (*notes, *built.notes)
