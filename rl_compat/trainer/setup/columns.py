"""The columns of the data that the settings name."""

from __future__ import annotations

from rl_compat.config.types import DataConfig
from rl_compat.data.form.columns import Columns


def data_columns(data: DataConfig) -> Columns:
    return Columns(
        prompt=data.prompt_key,
        response=data.response_key,
        chosen=data.chosen_key,
        rejected=data.rejected_key,
        label=data.label_key,
        answer=data.answer_key,
    )
