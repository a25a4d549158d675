"""The benchmarked engines by name: those of the rollout, `generate` of transformers, and vLLM with its own sampler."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_compat.bench.measure import Generates
from rl_compat.bench.options import ENGINES
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.source import WeightSource
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.inference import generating, hugging_face_model, neutral_generation_config
from rl_compat.rollout.transformers import pad_left
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.rollout.vllm.shutdown import Held, stop
from rl_compat.rollout.vllm.start import config_folder, engine_arguments, keep_log, require_vllm, start
from rl_compat.rollout.vllm.weights import hand_over


def engine_for(
    name: str, model: nn.Module, *, batch: int, max_length: int, architecture: str | None = None
) -> Generates:
    """The engine of a name in `ENGINES`. `generate` in half precision changes the dtype of the model."""
    kind, dtype = ENGINES[name]
    on_gpu = next(model.parameters()).is_cuda
    if kind == "generate":
        return PlainGenerate(model if dtype == "fp32" else model.to(TORCH_DTYPES[dtype]), batch=batch)
    is_vllm = kind.startswith("vllm")
    plan = RolloutPlan(
        engine="vllm" if is_vllm else kind,
        compute_dtype=dtype,
        max_num_seqs=batch,
        max_prefill_tokens=8192,
        cuda_graphs=on_gpu,
        packed_linears=kind == "native" and not on_gpu and dtype == "fp32",
        gpu_memory_utilization=0.5 if is_vllm and on_gpu else None,
        max_model_len=max_length if is_vllm else None,
        kernel_architecture=architecture,
    )
    if kind == "vllm-alone":
        return VllmAlone(model, plan=plan)
    return build_rollout_engine(model, plan=plan, pad_token_id=0)


class PlainGenerate:
    """`model.generate` with sampling, in batches of fixed size and in the order of the prompts."""

    def __init__(self, model: nn.Module, *, batch: int) -> None:
        self._model = hugging_face_model(model)
        self._batch = batch

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = 1
    ) -> list[list[Response]]:
        from transformers import GenerationConfig

        assert group_size == 1
        model: Any = self._model
        settings = GenerationConfig(
            max_new_tokens=params.max_new_tokens,
            do_sample=True,
            temperature=params.temperature,
            top_k=0,
            eos_token_id=list(params.stop_token_ids) or None,
            pad_token_id=0,
        )
        responses = []
        for first in range(0, len(prompts), self._batch):
            ids, mask = pad_left(prompts[first : first + self._batch], filler_id=0)
            with generating(model), neutral_generation_config(model):
                output = model.generate(
                    input_ids=ids.to(model.device), attention_mask=mask.to(model.device), generation_config=settings
                )
            responses += [[_cut(row, params)] for row in output[:, ids.shape[1] :].tolist()]
        return responses

    def load(self, source: WeightSource) -> None:
        """Do nothing, since the engine uses the model's weights."""
        del source


def _cut(tokens: list[int], params: SamplingParams) -> Response:
    end = next((place + 1 for place, token in enumerate(tokens) if token in params.stop_token_ids), len(tokens))
    return Response(
        token_ids=tuple(tokens[:end]),
        logprobs=(),
        finish_reason="stop" if tokens[end - 1] in params.stop_token_ids else "length",
    )


class VllmAlone:
    """vLLM with its own sampler, used as documented; it returns the log-probabilities of the drawn tokens."""

    def __init__(self, model: nn.Module, *, plan: RolloutPlan) -> None:
        require_vllm()
        # by default vLLM computes fp32 attention in TF32; this project's engine sets the same variable
        os.environ.setdefault("TRITON_F32_DEFAULT", "tf32")
        self._log = keep_log()
        self._folder = config_folder(model)
        arguments = engine_arguments(model, plan, folder=self._folder.name)
        del arguments["logits_processors"]
        self._engine = start(arguments)
        self._held = Held(engine=self._engine, source=weakref.ref(model))
        hand_over(self._engine, model, in_place=False)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = 1
    ) -> list[list[Response]]:
        from vllm import SamplingParams as VllmParams
        from vllm.sampling_params import RequestOutputKind

        assert group_size == 1
        settings = VllmParams(
            temperature=params.temperature,
            max_tokens=params.max_new_tokens,
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for row, prompt in enumerate(prompts):
            self._engine.add_request(str(row), {"prompt_token_ids": list(prompt)}, settings)
        found: dict[int, Response] = {}
        while len(found) < len(prompts):
            for output in self._engine.step():
                if output.finished:
                    done = output.outputs[0]
                    drawn = zip(done.token_ids, done.logprobs, strict=True)
                    found[int(output.request_id)] = Response(
                        token_ids=tuple(done.token_ids),
                        logprobs=tuple(float(at[token].logprob) for token, at in drawn),
                        finish_reason=done.finish_reason,
                    )
        return [[found[row]] for row in range(len(prompts))]

    def load(self, source: WeightSource) -> None:
        """Drop cached prompts, as loading new weights does."""
        del source
        assert self._engine.reset_prefix_cache()

    def stop(self) -> None:
        """Stop vLLM; a process can run only one."""
        self._engine = None
        stop(self._held)
