"""Whole plans, for recorded machines and for requests that cannot be met."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import (
    A100,
    P40,
    PPO,
    QWEN_05B,
    RECORDINGS,
    T4,
    V100,
    fits,
    machine,
    only_pool,
    planned,
    recorded,
    with_plan,
)

from rl_compat.config.types import (
    AlgorithmConfig,
    CostConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from rl_compat.errors import ConfigError, DoesNotFitError, HardwareError
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.units import GIB


@pytest.mark.parametrize("shape", [SMOLLM2_135M, QWEN_05B])
def test_a_p40_trains_in_fp32_with_fused_attention_and_graphs_and_without_triton(shape) -> None:
    """A-ENV-12."""
    plan = planned(PPO, recorded("p40"), shape)

    actor = plan.roles["actor"]
    pool = only_pool(plan)
    assert (pool.profile, pool.device, pool.device_name) == (
        "pascal",
        "cuda:0",
        "Tesla P40",
    )
    assert set(plan.roles) == {"actor", "critic", "reference"}
    assert {role.compute_dtype for role in plan.roles.values()} == {"fp32"}
    assert (actor.attention, only_pool(plan).sdpa_backends) == ("sdpa", ("efficient", "math"))
    assert (plan.rollout.engine, plan.rollout.compute_dtype, plan.rollout.cuda_graphs) == ("native", "fp32", True)
    assert plan.rollout.kernel_architecture == "sm_61"
    assert (only_pool(plan).choices["triton"].value, only_pool(plan).choices["torch_compile"].value) == ("off", "off")
    assert not actor.loss_scaling
    assert not only_pool(plan).tf32
    assert fits(plan)


@pytest.mark.parametrize(("version", "repeats"), [("2.13.0+cu126", True), ("2.14.1+cu126", False)])
def test_a_p40_repeats_grouped_keys_before_torch_2_14(version, repeats) -> None:
    hardware = recorded("p40")
    torch = replace(hardware.software.torch, version=version)
    plan = planned(PPO, replace(hardware, software=replace(hardware.software, torch=torch)), SMOLLM2_135M)

    assert {role.repeat_kv for role in plan.roles.values()} == {repeats}


def test_a_model_without_grouped_keys_repeats_none() -> None:
    shape = replace(SMOLLM2_135M, num_kv_heads=SMOLLM2_135M.num_heads)

    assert not planned(PPO, machine(P40), shape).roles["actor"].repeat_kv


@pytest.mark.parametrize("name", ["v100", "t4"])
def test_cards_of_7_x_with_tensor_cores_train_in_scaled_fp16(name) -> None:
    """A-ENV-03."""
    plan = planned(PPO, recorded(name), SMOLLM2_135M)

    assert {role.compute_dtype for role in plan.roles.values()} == {"fp16"}
    assert (plan.roles["actor"].loss_scaling, plan.roles["critic"].loss_scaling) == (True, True)
    assert not plan.roles["reference"].loss_scaling
    assert plan.roles["actor"].storage_dtype == "fp32"
    assert plan.rollout.compute_dtype == "fp16"
    assert fits(plan)


def test_a_gtx_1660_trains_in_fp32_and_saves_memory() -> None:
    plan = planned(PPO, recorded("gtx1660"), SMOLLM2_135M)

    assert only_pool(plan).profile == "turing16"
    assert plan.roles["actor"].compute_dtype == "fp32"
    assert plan.roles["actor"].gradient_checkpointing
    assert fits(plan)


@pytest.mark.parametrize(("name", "profile"), [("rtx3090", "ampere"), ("a100", "ampere"), ("h200", "hopper")])
def test_cards_from_8_0_train_in_bf16_with_fp32_masters(name, profile) -> None:
    plan = planned(PPO, recorded(name), QWEN_05B)

    actor = plan.roles["actor"]
    assert only_pool(plan).profile == profile
    assert (actor.compute_dtype, actor.storage_dtype, actor.loss_scaling) == ("bf16", "fp32", False)
    assert plan.rollout.compute_dtype == "bf16"
    assert only_pool(plan).tf32
    assert fits(plan)


def test_an_h200_needs_no_lever() -> None:
    plan = planned(PPO, recorded("h200"), SMOLLM2_135M)

    assert not plan.roles["actor"].gradient_checkpointing
    assert not plan.rollout.sleep_between
    assert plan.roles["reference"].storage_dtype == "fp32"
    assert only_pool(plan).host_bytes == 0


def test_a_laptop_without_gpu_trains_in_fp32_on_the_cpu() -> None:
    """A-ENV-15."""
    plan = planned(PPO, recorded("laptop_no_gpu"), SMOLLM2_135M)

    pool = only_pool(plan)
    assert (pool.profile, pool.device) == ("cpu", "cpu")
    assert (plan.roles["actor"].compute_dtype, plan.rollout.compute_dtype) == ("fp32", "fp32")
    assert not plan.rollout.cuda_graphs
    assert plan.rollout.kernel_architecture is None
    assert only_pool(plan).num_threads == recorded("laptop_no_gpu").host.num_cores
    assert only_pool(plan).host_bytes == only_pool(plan).peak_bytes
    assert fits(plan)


def test_bf16_on_a_cpu_is_taken_when_asked_for() -> None:
    plan = planned(with_plan(compute_dtype="bf16", rollout_dtype="bf16"), machine(), SMOLLM2_135M)

    assert (plan.roles["actor"].compute_dtype, plan.rollout.compute_dtype) == ("bf16", "bf16")
    assert only_pool(plan).choices["compute_dtype"].asked


def test_threads_that_the_environment_sets_are_left_alone() -> None:
    hardware = replace(machine(), environment={"OMP_NUM_THREADS": "1"})

    assert only_pool(planned(PPO, hardware, SMOLLM2_135M)).num_threads is None


@pytest.mark.parametrize(
    ("hardware", "settings", "message"),
    [
        (machine(P40), {"compute_dtype": "bf16"}, "`plan.compute_dtype=bf16` needs compute capability 8.0, device 0"),
        (machine(T4), {"rollout_dtype": "bf16"}, "`plan.rollout_dtype=bf16` needs compute capability 8.0"),
        (machine(P40), {"frozen_storage_dtype": "bf16"}, "`plan.frozen_storage_dtype=bf16` needs"),
        (machine(V100), {"attention": "flash_attention_2"}, "has 7.0"),
        (machine(), {"attention": "flash_attention_2"}, "`plan.attention=flash_attention_2` needs a CUDA device"),
        (machine(A100), {"num_devices": 4}, ": 4, visible: 1"),
        (machine(A100, P40), {"num_devices": 2}, "1 x NVIDIA A100-SXM4-80GB and 1 x Tesla P40"),
        (machine(), {"device": "cuda"}, ": 1, visible: 0"),
        (machine(P40), {"profile": "hopper"}, "profile `hopper` is for compute capability 9.0 to 9.0"),
        (recorded("p40_cu128_wheel"), {}, "has no code for device 0 (Tesla P40)"),
        (recorded("rtx3060_cpu_torch"), {}, "torch 2.6.0+cpu is a CPU build"),
    ],
)
def test_what_the_hardware_cannot_do_is_refused_with_the_fact(hardware, settings, message) -> None:
    """A-ENV-01, A-ENV-03, A-ENV-10."""
    with pytest.raises(HardwareError) as caught:
        planned(with_plan(**settings), hardware, SMOLLM2_135M)

    assert message in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_an_8_bit_optimizer_without_gpu_library_is_refused() -> None:
    """A-ENV-08."""
    hardware = recorded("p40")
    without = replace(hardware, software=replace(hardware.software, bitsandbytes_library="cpu"))
    config = replace(PPO, optimizer=OptimizerConfig(name="adamw8bit"))

    with pytest.raises(HardwareError, match=r"`optimizer\.name=adamw8bit`.*`libbitsandbytes_cpu`"):
        planned(config, without, SMOLLM2_135M)
    assert planned(config, hardware, SMOLLM2_135M).roles["actor"].optimizer == "adamw8bit"


def test_an_unusable_gpu_can_be_left_aside() -> None:
    assert only_pool(planned(with_plan(device="cpu"), recorded("rtx3060_cpu_torch"), SMOLLM2_135M)).device == "cpu"


def test_explicit_settings_beat_the_profile_and_are_recorded_as_asked() -> None:
    config = with_plan(
        compute_dtype="fp32",
        rollout_dtype="fp32",
        attention="eager",
        gradient_checkpointing=True,
        offload_optimizer=True,
        offload_idle_models=True,
        frozen_storage_dtype="bf16",
        micro_batch_size=2,
        max_tokens_per_micro_batch=2000,
        logprob_chunk_tokens=100,
    )
    plan = planned(
        replace(config, rollout=RolloutConfig(max_num_seqs=7, max_num_batched_tokens=600)),
        recorded("h200"),
        SMOLLM2_135M,
    )

    actor = plan.roles["actor"]
    assert (actor.compute_dtype, actor.attention, plan.rollout.compute_dtype) == ("fp32", "eager", "fp32")
    assert (actor.gradient_checkpointing, actor.offload_optimizer, actor.offload_idle) == (True, True, True)
    assert plan.roles["reference"].storage_dtype == "bf16"
    assert (actor.micro_batch_size, actor.max_tokens_per_micro_batch, actor.logprob_chunk_tokens) == (2, 2000, 100)
    assert (plan.rollout.max_num_seqs, plan.rollout.max_prefill_tokens) == (7, 600)
    for concern in ("compute_dtype", "attention", "gradient_checkpointing", "offload_optimizer"):
        assert only_pool(plan).choices[concern].asked


def test_a_fixed_micro_batch_gets_room_for_its_longest_sequences() -> None:
    actor = planned(with_plan(micro_batch_size=3), recorded("h200"), SMOLLM2_135M).roles["actor"]

    assert (actor.micro_batch_size, actor.max_tokens_per_micro_batch) == (3, 3 * (512 + 256))


def test_a_prefill_smaller_than_a_prompt_is_refused() -> None:
    config = replace(PPO, rollout=RolloutConfig(max_num_batched_tokens=100))

    with pytest.raises(ConfigError, match=r"`rollout\.max_num_batched_tokens` is 100 and a prompt may have 512 tokens"):
        planned(config, machine(), SMOLLM2_135M)


def test_only_free_memory_is_planned_with_and_that_is_said() -> None:
    """A-ENV-14."""
    hardware = recorded("rtx3090_shared")
    config = replace(PPO, data=DataConfig(max_prompt_length=128, max_response_length=64))

    plan = planned(replace(config, model=ModelConfig(lora_rank=8)), hardware, SMOLLM2_135M)

    assert only_pool(plan).memory_available_bytes == int(0.9 * 3 * GIB)
    assert all(fact in plan.notes[0] for fact in ("21.0 GiB", "3.0 GiB", "NVIDIA GeForce RTX 3090"))
    with pytest.raises(DoesNotFitError, match=r"3\.0 GiB of 24\.0 GiB free"):
        planned(config, hardware, QWEN_05B)


def test_a_mixed_machine_plans_for_the_device_that_torch_calls_0() -> None:
    plan = planned(PPO, recorded("mixed_p40_a100"), SMOLLM2_135M)

    pool = only_pool(plan)
    assert (pool.device, pool.device_name, pool.profile) == (
        "cuda:0",
        "NVIDIA A100-PCIE-40GB",
        "ampere",
    )


def test_ppo_lagrangian_has_two_critics_and_is_not_replaced_by_what_has_no_cost() -> None:
    config = RunConfig(algorithm=AlgorithmConfig(name="ppo_lagrangian"), cost=CostConfig(functions=("repetition",)))
    plan = planned(config, recorded("h200"), SMOLLM2_135M)
    assert set(plan.roles) == {"actor", "critic", "cost_critic"}
    assert plan.roles["cost_critic"] == replace(plan.roles["critic"], role="cost_critic")

    with pytest.raises(DoesNotFitError) as caught:
        planned(config, machine(replace(P40, memory_free_bytes=GIB), ram_bytes=4 * GIB), QWEN_05B)
    assert "algorithm.name=grpo" not in str(caught.value.hint)


def test_ppo_without_kl_has_no_reference_and_grpo_no_critic() -> None:
    ppo = planned(RunConfig(), recorded("h200"), SMOLLM2_135M)
    grpo = planned(
        RunConfig(algorithm=AlgorithmConfig(name="grpo", group_size=4, kl_loss="k3")), recorded("h200"), SMOLLM2_135M
    )

    assert set(ppo.roles) == {"actor", "critic"}
    assert [budget.phase for budget in only_pool(ppo).budgets] == [
        "rollout",
        "logprobs",
        "values",
        "critic_update",
        "actor_update",
    ]
    assert set(grpo.roles) == {"actor", "reference"}
    assert [budget.phase for budget in only_pool(grpo).budgets] == ["rollout", "logprobs", "reference", "actor_update"]


def test_with_adapters_the_reference_is_the_actor_with_them_off() -> None:
    config = replace(PPO, model=ModelConfig(lora_rank=16))
    plan = planned(config, recorded("p40"), QWEN_05B)

    assert set(plan.roles) == {"actor", "critic"}
    phases = {budget.phase: budget.items for budget in only_pool(plan).budgets}
    assert "reference" in phases
    assert "reference weights" not in phases["reference"]
    assert phases["actor_update"]["actor optimizer"] == 8 * QWEN_05B.lora_parameters(16)


def test_another_critic_is_counted_with_its_own_shape() -> None:
    plan = planned(PPO, recorded("h200"), QWEN_05B, critic=SMOLLM2_135M)

    items = only_pool(plan).budgets[0].items
    assert items["critic weights"] == 4 * (SMOLLM2_135M.trunk_parameters + SMOLLM2_135M.hidden_size + 1)


def test_an_emulated_card_caps_memory_and_kernels() -> None:
    from rl_compat.hardware.gpu.catalogue import emulated_hardware

    on_gpu = planned(PPO, emulated_hardware("Tesla P40", recorded("h200")), SMOLLM2_135M)
    on_cpu = planned(PPO, emulated_hardware("Tesla P40", recorded("laptop_no_gpu")), SMOLLM2_135M)

    for plan in (on_gpu, on_cpu):
        pool = only_pool(plan)
        assert (pool.profile, pool.emulated, pool.emulated_capability) == ("pascal", "Tesla P40", (6, 1))
        assert pool.memory_cap_bytes == 24 * GIB
        assert pool.sdpa_backends == ("efficient", "math")
        assert not pool.tf32
    assert (only_pool(on_gpu).devices, on_gpu.rollout.cuda_graphs) == (("cuda:0",), True)
    assert (only_pool(on_cpu).devices, on_cpu.rollout.cuda_graphs) == (("cpu",), False)
    assert only_pool(on_cpu).memory_available_bytes <= recorded("laptop_no_gpu").host.ram_available_bytes


def test_a_recording_of_a_gpu_machine_keeps_its_device_and_has_no_cap() -> None:
    plan = planned(PPO, recorded("p40"), SMOLLM2_135M)

    pool = only_pool(plan)
    assert (pool.device, pool.emulated, pool.memory_cap_bytes) == ("cuda:0", None, None)


def test_group_size_multiplies_the_sequences() -> None:
    """A-MEM-04: 32 prompts of 8 responses are 256 sequences; memory follows sequences."""
    config = RunConfig(
        algorithm=AlgorithmConfig(name="grpo", group_size=8),
        trainer=TrainerConfig(batch_size=32, mini_batch_size=8, validate_before=False, validate_after=False),
    )
    plan = planned(config, recorded("h200"), SMOLLM2_135M)
    alone = planned(
        replace(config, algorithm=AlgorithmConfig(name="grpo", group_size=2)), recorded("h200"), SMOLLM2_135M
    )

    assert (plan.rollout.max_num_seqs, alone.rollout.max_num_seqs) == (256, 64)
    assert only_pool(plan).budgets[0].items["kv cache"] == 4 * only_pool(alone).budgets[0].items["kv cache"]


def test_every_choice_has_a_reason_and_every_rejected_value_too() -> None:
    plan = planned(PPO, recorded("p40"), SMOLLM2_135M)

    for choice in only_pool(plan).choices.values():
        assert choice.value
        assert choice.reason
        assert all(rejected.reasons for rejected in choice.rejected)
    rejected = {item.value: item.reasons for item in only_pool(plan).choices["attention"].rejected}
    assert rejected["flash_attention_2"][0] == "needs compute capability 8.0, device 0 (Tesla P40) has 6.1"


def test_an_unknown_family_is_planned_for_with_a_note() -> None:
    plan = planned(PPO, recorded("h200"), replace(SMOLLM2_135M, model_type="novel", exact=False))

    (note,) = plan.notes
    assert "`novel`" in note


def test_offload_on_a_cpu_is_off_and_says_why() -> None:
    plan = planned(with_plan(offload_optimizer=True), machine(), SMOLLM2_135M)

    assert not plan.roles["actor"].offload_optimizer
    (note,) = plan.notes
    assert "offload" in note


def test_sequences_longer_than_the_model_was_made_for_are_noted() -> None:
    shape = replace(SMOLLM2_135M, max_positions=700)

    notes = planned(PPO, recorded("h200"), shape).notes

    assert len(notes) == 1
    assert all(fact in notes[0] for fact in ("768", "700", "`data.max_prompt_length`", "`data.max_response_length`"))


WITHOUT_A_USABLE_TORCH = {
    "lxc_without_uvm",
    "p40_cu128_wheel",
    "p40_vllm_brought_torch",
    "rtx3060_cpu_torch",
    "rtx3090_library_conflict",
    "rtx3090_old_driver",
    "rtx3090_old_driver_torch_2_5",
    "rtx3090_prohibited",
    "rtx3090_torch_hang",
    "rtx3090_torch_missing_library",
    "rtx3090_torch_segfault",
    "rtx4090_driver_550",
    "rtx5090_cu126_wheel",
    "v100_cu132_wheel",
    "v100_vllm",
    "wsl_rtx4070_old_driver",
}
TOO_OLD = {"k80"}


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in RECORDINGS.glob("*.json")} - WITHOUT_A_USABLE_TORCH - TOO_OLD)
)
def test_every_recorded_machine_gets_a_plan_that_fits(name) -> None:
    """A-ENV-06 and others; the shared card has 3 GiB free, too little for all weights but not for adapters."""
    config = replace(PPO, model=ModelConfig(lora_rank=8)) if name == "rtx3090_shared" else PPO

    assert fits(planned(config, recorded(name), SMOLLM2_135M))


@pytest.mark.parametrize("name", sorted(WITHOUT_A_USABLE_TORCH))
def test_a_torch_that_cannot_use_the_gpu_is_refused_before_anything_else(name) -> None:
    """A-ENV-01, A-ENV-09, A-ENV-10, A-ENV-13."""
    with pytest.raises(HardwareError, match="torch") as caught:
        planned(PPO, recorded(name), SMOLLM2_135M)

    assert caught.value.hint is not None
    assert "rlc doctor" in caught.value.hint
