"""Models with numbers as output: a critic with one per token, a reward model with one per conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from rl_compat.errors import ModelError
from rl_compat.models.load import LoadSettings, load_sequence_classifier, load_trunk
from rl_compat.models.lora import merge_for_export
from rl_compat.models.parts import whole

HEAD_FILE = "value_head.safetensors"


class ValueModel(nn.Module):
    """Token ids [B, L] to values [B, L] in fp32. The head is initialised to zero, so that the first values are 0."""

    def __init__(self, trunk: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor) -> Tensor:
        """The value after each token, [B, L]. Padding must be on the right, where causal attention ignores it."""
        hidden = self.trunk(input_ids=input_ids, use_cache=False).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.head(hidden.float())
        return values.sum(-1)  # over one value; FSDP2 warns of a view

    def weights(self, *, keeps: bool = True) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies of the weights of the trunk, adapters merged, and of the head, on the CPU.

        Ranks that share weights make this call together; those without `keeps` get no trunk.
        """
        head = {name: whole(tensor.detach()).cpu() for name, tensor in self.head.named_parameters()}
        return merge_for_export(self.trunk, keeps=keeps), head

    def save_pretrained(self, folder: Path, weights: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None) -> None:
        """Write weights, by default its own: the trunk as a Hugging Face folder, the head to a file in that folder."""
        trunk, head = weights or self.weights()
        folder.mkdir(parents=True, exist_ok=True)
        self.trunk.save_pretrained(folder, state_dict=trunk)  # type: ignore[operator]
        save_file(head, folder / HEAD_FILE)


def check_scoring_family(folder: Path) -> None:
    """Raise ModelError if the model's family has no sequence classifier that reads the last token."""
    name = scoring_architecture(folder)
    if name is None:
        raise ModelError(
            f"transformers has no sequence classifier that reads the last token for the model in `{folder}`",
            hint="use a model of the llama, qwen, mistral, gemma or phi family",
        )


def scoring_architecture(folder: Path) -> str | None:
    """The class name of the family's sequence classifier if it is a trunk and a linear `score` without bias."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, num_labels=1)
    try:
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config)
    except ValueError:
        return None
    score = getattr(model, "score", None)
    suits = isinstance(score, nn.Linear) and score.bias is None and hasattr(model, model.base_model_prefix)
    return type(model).__name__ if suits else None


def load_value_model(settings: LoadSettings) -> ValueModel:
    """A critic from a language model, a reward model (whose score initialises the head) or a saved critic.

    Raises ModelError if the folder cannot be loaded or its head does not fit the trunk.
    """
    folder = settings.folder
    trunk = load_trunk(settings)
    hidden_size = int(trunk.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]
    model = ValueModel(trunk, hidden_size)
    weights = _stored_head(folder)
    if weights is not None:
        if weights["weight"].shape != model.head.weight.shape:
            shape = tuple(weights["weight"].shape)
            raise ModelError(f"the value head in `{folder}` has shape {shape}, and the trunk needs (1, {hidden_size})")
        model.head.load_state_dict({"bias": torch.zeros(1)} | weights)
    model.head.to(settings.role.device)
    return model.eval()


def load_scoring_model(settings: LoadSettings) -> ValueModel:
    """A reward model to train: a critic whose head has no bias, since comparisons cannot determine one.

    Raises ModelError like `load_value_model`.
    """
    model = load_value_model(settings)
    nn.init.zeros_(model.head.bias)
    model.head.bias.requires_grad_(False)
    return model


def classifier_of(model: ValueModel, folder: Path, *, pad_token_id: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A reward model as a sequence classifier of its family with one output: its weights and changes to its config.

    `folder` is where the trunk was loaded from. Adapters are merged.
    """
    architecture = scoring_architecture(folder)
    assert architecture is not None
    prefix = str(model.trunk.base_model_prefix)
    state = {f"{prefix}.{name}": tensor for name, tensor in merge_for_export(model.trunk).items()}
    state["score.weight"] = model.head.weight.detach().cpu().clone()
    config = {
        "architectures": [architecture],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "pad_token_id": pad_token_id,
    }
    return state, config


def _stored_head(folder: Path) -> dict[str, Tensor] | None:
    """The weight [1, H] and, if any, bias [1] of a saved critic or of a reward model with one output."""
    if (folder / HEAD_FILE).is_file():
        head: dict[str, Tensor] = load_file(folder / HEAD_FILE)
        return head
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            if "score.weight" in tensors.keys() and tensors.get_slice("score.weight").get_shape()[0] == 1:  # noqa: SIM118
                return {"weight": tensors.get_tensor("score.weight")}
    return None


class RewardNetwork(nn.Module):
    """Token ids [B, L], padded on the right, with lengths [B], to rewards [B] in fp32.

    The reward of a decoder is read at position `length - 1`. The lengths are an argument because the pad token may be
    missing or equal to the end token. Encoders use their own pooling and the attention mask.
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier
        self.reads_last_token = isinstance(getattr(classifier, "score", None), nn.Linear)

    @property
    def max_length(self) -> int | None:
        """The longest input of the model in tokens, None if its config does not say."""
        config: Any = self.classifier.config
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        return int(longest) if isinstance(longest, int) and longest > 0 else None

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        model: Any = self.classifier
        inside = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths[:, None]
        mask = None if bool(inside.all()) else inside.long()
        if not self.reads_last_token:
            return model(input_ids=input_ids, attention_mask=mask).logits[:, 0].float()  # type: ignore[no-any-return]
        hidden = model.base_model(input_ids=input_ids, attention_mask=mask, use_cache=False)[0]
        last = hidden[torch.arange(len(lengths), device=hidden.device), lengths - 1]
        return model.score(last)[:, 0].float()  # type: ignore[no-any-return]


def load_reward_model(settings: LoadSettings) -> RewardNetwork:
    """The frozen reward model in a folder, on the device of the role. Raises ModelError."""
    return RewardNetwork(load_sequence_classifier(settings)).eval()
