"""What grows with what in the phase budgets, and a rollout engine's share of the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import QWEN_05B, only_pool, planned

from rl_compat.config.types import DataConfig
from rl_compat.planning.memory.budget import (
    CAST_NUMBERS,
    HANDOVER_BYTES,
    host_bytes,
    phase_budgets,
    rollout_engine_bytes,
    weights_bytes,
)
from rl_compat.planning.memory.request import Levers, MemoryRequest, Sizes
from rl_compat.planning.memory.vllm import vllm_working_bytes
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.workload import shared_workload
from rl_compat.resharding.sharded import BUCKET_BYTES
from rl_compat.units import GIB

REQUEST = MemoryRequest(
    workload=shared_workload(
        dict.fromkeys(("actor", "critic", "reference"), QWEN_05B),
        data=DataConfig(max_prompt_length=256, max_response_length=256),
    ),
    quantization="none",
    compute_dtype="fp32",
    rollout_dtype="fp32",
    repeat_kv=True,
    eager_attention=False,
    optimizer_state_bytes=8,
    engine="native",
    on_cpu=False,
    cuda_graphs=True,
    context_bytes=GIB // 2,
    allocator_factor=1.13,
)
SIZES = Sizes(micro_batch_tokens=4 * 512, logprob_chunk_tokens=4096, max_num_seqs=16, max_prefill_tokens=4096)


def changed(
    request: MemoryRequest = REQUEST, *, models: dict[str, ModelShape] | None = None, **changes
) -> MemoryRequest:
    """A request with other models, facts of the workload, or choices."""
    workload = request.workload
    if models is not None:
        data = DataConfig(max_prompt_length=256, max_response_length=256)
        workload = shared_workload(models, data=data)
    of_workload = {name: changes.pop(name) for name in tuple(changes) if hasattr(workload, name)}
    rank = of_workload.pop("lora_rank", 0)
    workload = replace(workload, **of_workload)
    return replace(request, workload=workload.with_adapters(rank) if rank else workload, **changes)


def phase(
    name: str, request: MemoryRequest = REQUEST, levers: Levers = Levers(), sizes: Sizes = SIZES
) -> dict[str, int]:
    return dict(next(b for b in phase_budgets(request, levers, sizes) if b.phase == name).items)


def test_weights_gradients_and_moments_of_a_full_ppo_step() -> None:
    items = phase("actor_update")

    assert items["actor weights"] == 4 * 494_032_768
    assert items["actor optimizer"] == 8 * 494_032_768
    assert items["gradients"] == 4 * 494_032_768
    assert items["reference weights"] == 4 * 494_032_768
    assert items["critic optimizer"] == 8 * (QWEN_05B.trunk_parameters + 896 + 1)


def test_a_second_critic_is_held_in_every_phase_and_has_its_own() -> None:
    both = changed(models=dict.fromkeys(("actor", "critic", "cost_critic", "reference"), QWEN_05B))

    budgets = {budget.phase: budget.items for budget in phase_budgets(both, Levers(), SIZES)}

    assert list(budgets)[-5:] == ["values", "cost_values", "critic_update", "cost_critic_update", "actor_update"]
    assert budgets["cost_critic_update"]["gradients"] == budgets["critic_update"]["gradients"]
    for phase_name, items in budgets.items():
        assert items["cost_critic weights"] == items["critic weights"], phase_name
        assert items["cost_critic optimizer"] == items["critic optimizer"], phase_name
    assert weights_bytes(both, Levers(), "cost_critic") == weights_bytes(both, Levers(), "critic")


def test_a_cost_model_is_kept_frozen_and_has_a_phase() -> None:
    items = phase("cost", changed(models={"actor": QWEN_05B, "cost": SMOLLM2_135M}))

    assert items["cost weights"] == 4 * SMOLLM2_135M.trunk_parameters
    assert "cost optimizer" not in items


def test_moments_are_there_from_the_start_for_every_trained_parameter() -> None:
    """A-MEM-02: 1.0e9 trained parameters have 7.45 GiB of moments; adapters only their own."""
    billion = ModelShape.from_config(
        {
            "model_type": "llama",
            "hidden_size": 2000,
            "intermediate_size": 6000,
            "num_hidden_layers": 20,
            "num_attention_heads": 20,
            "vocab_size": 20000,
        }
    )
    request = changed(models={"actor": billion, "reference": billion})
    adapters = changed(request, lora_rank=8)

    assert phase("rollout", request)["actor optimizer"] / billion.num_parameters == 8
    assert phase("rollout", adapters)["actor optimizer"] == 8 * billion.lora_parameters(8)
    assert pytest.approx(7.45, abs=0.01) == 8 * 1_000_000_000 / GIB


def test_logits_grow_with_response_tokens_and_not_with_depth() -> None:
    """A-MEM-01."""
    deeper = replace(QWEN_05B, num_layers=2 * QWEN_05B.num_layers)
    base = phase("logprobs")["logits"]

    twice_rows = phase("logprobs", sizes=replace(SIZES, micro_batch_tokens=8 * 512))["logits"]
    longer = changed(max_prompt_length=0, max_response_length=512)

    assert twice_rows == 2 * base
    assert phase("logprobs", changed(models={"actor": deeper}))["logits"] == base
    assert phase("logprobs", longer)["logits"] == 2 * base
    assert phase("logprobs", sizes=replace(SIZES, logprob_chunk_tokens=256))["logits"] == base // 4


def test_a_long_prompt_costs_activations_and_cache_and_no_logits() -> None:
    """A-MEM-06: prompt 256 or 4096, response 256, one sequence at a time."""
    long = changed(max_prompt_length=4096)
    short_sizes = replace(SIZES, micro_batch_tokens=512)
    long_sizes = replace(SIZES, micro_batch_tokens=4096 + 256)

    short_items = phase("actor_update", sizes=short_sizes)
    long_items = phase("actor_update", long, sizes=long_sizes)

    assert long_items["activations"] > 8 * short_items["activations"]
    assert phase("logprobs", long, sizes=long_sizes)["logits"] == phase("logprobs", sizes=short_sizes)["logits"]
    assert phase("rollout", long)["kv cache"] > 8 * phase("rollout")["kv cache"]


def test_each_lever_saves_what_it_says() -> None:
    base = phase("actor_update")

    asleep = phase("actor_update", levers=Levers(sleep_between=True))
    halved = phase("actor_update", levers=Levers(frozen_dtype="fp16"))
    away = phase("actor_update", levers=Levers(offload_idle_models=True))
    on_host = phase("actor_update", levers=Levers(offload_optimizer=True))
    checkpointed = phase("actor_update", levers=Levers(gradient_checkpointing=True))

    assert "kv cache" not in asleep
    assert halved["reference weights"] == pytest.approx(base["reference weights"] / 2, rel=0.001)
    assert not {"critic weights", "reference weights"} & set(away)
    assert not {"actor optimizer", "critic optimizer"} & set(on_host)
    assert checkpointed["activations"] < base["activations"] / 5


def test_the_active_role_is_never_away() -> None:
    levers = Levers(offload_idle_models=True)

    assert "actor weights" in phase("rollout", levers=levers)
    assert "reference weights" in phase("reference", levers=levers)
    assert "critic weights" in phase("values", levers=levers)


def test_offload_moves_bytes_to_the_host() -> None:
    assert host_bytes(REQUEST, Levers()) == 0
    assert host_bytes(REQUEST, Levers(offload_idle_models=True)) == sum(
        weights_bytes(REQUEST, Levers(), role) for role in REQUEST.workload.models
    )
    assert host_bytes(REQUEST, Levers(offload_optimizer=True)) >= 12 * 2 * QWEN_05B.trunk_parameters


def test_weights_on_their_way_to_another_pool_are_in_host_memory() -> None:
    """Of two processes, each publishes half: the last values, and versions in the store."""
    full, adapters = changed(publishers=2), changed(publishers=2, lora_rank=16)
    assert host_bytes(full, Levers()) == int(3.5 * 4 * QWEN_05B.num_parameters) // 2
    assert host_bytes(adapters, Levers()) < host_bytes(full, Levers())
    on_cpu = phase("actor_update", replace(full, on_cpu=True, cuda_graphs=False))
    assert on_cpu["copies of weights"] == host_bytes(full, Levers())


def test_vllm_loads_shards_from_a_copy_in_host_memory() -> None:
    vllm = changed(engine="vllm", rollout_dtype="bf16", cuda_graphs=False)
    assert host_bytes(vllm, Levers()) == 0
    assert host_bytes(vllm, Levers(num_shards=2)) == 2 * QWEN_05B.num_parameters


def test_half_precision_rollout_from_fp32_weights_needs_a_copy() -> None:
    half = replace(REQUEST, rollout_dtype="bf16", compute_dtype="bf16")

    assert phase("rollout", half)["rollout weights"] == 2 * 357_854_208, "embedding, head and norms stay shared"
    assert "rollout weights" not in phase("rollout")
    assert phase("rollout", half)["kv cache"] == phase("rollout")["kv cache"] // 2


def test_weights_kept_in_half_precision_are_shared_by_the_rollout_and_cast_a_piece_at_a_time() -> None:
    adapters = changed(models={"actor": QWEN_05B}, lora_rank=16)
    exact, stored = phase("rollout", adapters), phase("rollout", adapters, Levers(frozen_dtype="fp16"))

    assert "weight copies" not in exact
    assert stored["weight copies"] == 4 * CAST_NUMBERS < 4 * QWEN_05B.embedding_parameters
    assert stored["cuda graphs"] == exact["cuda graphs"] + 4 * CAST_NUMBERS
    assert stored["kv cache"] == exact["kv cache"]

    half = phase("rollout", replace(adapters, rollout_dtype="fp16"), Levers(frozen_dtype="fp16"))
    assert "rollout weights" not in half
    assert half["kv cache"] == exact["kv cache"] // 2
    assert half["actor weights"] == stored["actor weights"]


def test_transformers_casts_a_stored_output_layer_whole() -> None:
    adapters = changed(lora_rank=16, engine="transformers", cuda_graphs=False)
    stored = phase("rollout", adapters, Levers(frozen_dtype="fp16"))
    assert stored["weight copies"] == 4 * QWEN_05B.embedding_parameters


@pytest.mark.parametrize("name", ["int8", "nf4"])
def test_a_quantized_matrix_is_unpacked_to_be_multiplied(name: str) -> None:
    adapters = changed(lora_rank=16, quantization=name, rollout_dtype="fp16")
    largest = max(linear.num_parameters for linear in QWEN_05B.linears)
    assert phase("rollout", adapters)["weight copies"] == 2 * largest
    assert phase("actor_update", adapters)["weight copies"] == 4 * largest


@pytest.mark.parametrize(("name", "weight_bytes"), [("int8", 1.008), ("nf4", 0.516)])
def test_a_quantized_base_takes_its_bytes_per_weight_of_the_linear_layers(name: str, weight_bytes: float) -> None:
    adapters = changed(lora_rank=16)
    quantized = replace(adapters, quantization=name)

    saved = weights_bytes(adapters, Levers(), "actor") - weights_bytes(quantized, Levers(), "actor")

    assert saved / QWEN_05B.linear_parameters == pytest.approx(4 - weight_bytes, abs=0.001)


def test_entropy_and_top_p_cost_copies_of_logits() -> None:
    plain, entropy = phase("actor_update"), phase("actor_update", changed(entropy=True))
    sorting = phase("rollout", changed(sorts_vocabulary=True))

    assert entropy["logits"] - plain["logits"] == 3 * 4 * 151936 * 1024
    assert sorting["last-token logits"] > 2 * phase("rollout")["last-token logits"]


def test_eager_attention_pays_for_the_square_of_the_length() -> None:
    eager = replace(REQUEST, eager_attention=True, repeat_kv=False)

    extra = phase("actor_update", eager)["activations"] - phase("actor_update")["activations"]

    assert extra == QWEN_05B.num_layers * 2048 * 512 * QWEN_05B.num_heads * 4


def test_the_transformers_engine_keeps_no_cache_between_rollouts() -> None:
    request = replace(REQUEST, engine="transformers", cuda_graphs=False)

    assert "kv cache" in phase("rollout", request)
    assert "kv cache" not in phase("actor_update", request)


def test_the_allocators_slack_is_a_fraction_of_all_tensors() -> None:
    items = phase("actor_update")
    tensors = sum(items.values()) - items["context"] - items["allocator slack"]

    assert items["allocator slack"] == pytest.approx(0.13 * tensors, rel=1e-6)


def test_shards_of_the_actor_need_a_buffer_on_their_way_to_the_rollout_where_its_work_takes_less() -> None:
    few, shared = replace(SIZES, max_num_seqs=1, max_prefill_tokens=1), Levers(num_shards=2)
    embedding = 2 * QWEN_05B.embedding_parameters
    vllm = changed(engine="vllm", rollout_dtype="bf16", cuda_graphs=False)
    working = sum(vllm_working_bytes(vllm, few).values())
    assert phase("rollout", vllm, shared, few)["handover"] == HANDOVER_BYTES + embedding - working > 0
    assert phase("rollout", REQUEST, shared, SIZES).get("handover", 0) == 0
    assert "handover" not in phase("rollout", vllm, Levers(), few)
    assert HANDOVER_BYTES == BUCKET_BYTES


def test_a_tiny_share_bounds_the_cache_of_the_native_engine() -> None:
    from fakes.machines import A100, machine

    from rl_compat.config.types import RolloutConfig, RunConfig

    free = planned(RunConfig(), machine(A100), SMOLLM2_135M)
    bounded = planned(RunConfig(rollout=RolloutConfig(gpu_memory_utilization=0.02)), machine(A100), SMOLLM2_135M)

    assert bounded.rollout.max_num_seqs < free.rollout.max_num_seqs
    items = only_pool(bounded).budgets[0].items
    assert items["kv cache"] + items["rollout weights"] <= 0.02 * 80 * GIB
    assert bounded.rollout.gpu_memory_utilization == 0.02


def test_a_cpu_keeps_a_packed_copy_of_the_weights_it_decodes_with() -> None:
    request = replace(REQUEST, on_cpu=True, cuda_graphs=False)
    items = rollout_engine_bytes(request, Levers(), SIZES)
    assert items["packed weights"] == 4 * QWEN_05B.num_parameters
    assert "packed weights" not in rollout_engine_bytes(replace(request, rollout_dtype="bf16"), Levers(), SIZES)
