"""Checks of data with the tokenizer, template, limits and rewards of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import RunConfig
from rl_compat.data.check.file_check import FileCheck, Judge, Tools
from rl_compat.data.encode.items import ItemEncoder
from rl_compat.data.form.patterns import Form
from rl_compat.data.read.reading import Reading
from rl_compat.data.read.records import Records
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.files.registry import resolve_model
from rl_compat.models.tokenizer import TokenizerBundle, load_tokenizer
from rl_compat.rewards.checks import gold_answers, reference_judge
from rl_compat.trainer.offline.data import encoding_of


def open_checks(
    config: RunConfig, files: Sequence[tuple[Records, Reading, Form]], *, announce: Callable[[str], None]
) -> list[FileCheck]:
    """One check for each file, ready to run. Raises DataError and ModelError."""
    judged = ALGORITHMS[config.algorithm.name].learns_from == "prompts"
    tools = _tools(config, judged=judged, announce=announce)
    return [FileCheck(file, reading, form, tools) for file, reading, form in files]


def _tools(config: RunConfig, *, judged: bool, announce: Callable[[str], None]) -> Tools:
    bundle = _tokenizer(config)
    chat = ChatEncoder(bundle, config.model.chat_template)
    for note in (*bundle.notes, *chat.notes, *chat.ends()):
        announce(note)
    tokenizer, reward = bundle.tokenizer, config.reward
    judge: Judge = lambda source, truth, reference: []  # noqa: E731
    if judged:
        judge = reference_judge(reward.functions, sources=reward.sources, arguments=reward.function_arguments)
    encoding = encoding_of(config, chat)
    return Tools(
        encoding=encoding,
        encoder=None if judged else ItemEncoder(config.algorithm.name, encoding),
        count_tokens=lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]),
        begin=tokenizer.bos_token_id,
        special=tuple(token.content for token in tokenizer.added_tokens_decoder.values() if token.special),
        end=tuple(_named_token(tokenizer, token_id) for token_id in chat.stop_token_ids),
        judge=judge,
        gold=gold_answers(reward.functions, reward.sources),
    )


def _named_token(tokenizer: Any, token_id: int) -> str:
    """A token as text with its id."""
    return f"{tokenizer.convert_ids_to_tokens(token_id) or 'not in the vocabulary:'} ({token_id})"


def _tokenizer(config: RunConfig) -> TokenizerBundle:
    """The tokenizer, without the weights of the model."""
    model = config.model
    source = resolve_model(model.tokenizer or model.path, needs=("tokenizer",))
    return load_tokenizer(source.folder, trust_remote_code=model.trust_remote_code)
