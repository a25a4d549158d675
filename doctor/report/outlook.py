"""The verdict as text: whether training works here, and how large a model each method reaches."""

from __future__ import annotations

from rl_compat.doctor.diagnosis import Diagnosis
from rl_compat.doctor.findings import Severity
from rl_compat.doctor.report.paper import BAD, BOLD, DIM, Paper
from rl_compat.doctor.verdict import LADDER, Reach, Verdict
from rl_compat.planning.types import Plan
from rl_compat.units import format_bytes


def render_verdict(diagnosis: Diagnosis, paper: Paper) -> list[str]:
    """What works as things are; where nothing does, why, and what works once it is mended."""
    verdict, mended = diagnosis.verdict, diagnosis.once_mended
    if verdict is None:
        return []
    if verdict.works:
        unseen = any(option == "--no-torch" for _, option in diagnosis.left_out)
        works = "training works here" + (", as far as can be told without torch" if unseen else "")
        return [*_headline(f"{works}: {verdict.device}", paper, BOLD), *_outlook(verdict, paper)]
    broken = _headline(f"training does not work here{_because(diagnosis, verdict)}", paper, BAD)
    if mended is None:
        return [*broken, *paper.wrap(verdict.device, first="  ")]
    with_torch = f" with torch {mended.torch}" if mended.torch else ""
    return [*broken, *_headline(f"once mended{with_torch}: {mended.device}", paper, BOLD), *_outlook(mended, paper)]


def _because(diagnosis: Diagnosis, verdict: Verdict) -> str:
    """Where the reasons are, or the one that no finding says."""
    failures = [finding.what for finding in diagnosis.findings if finding.severity is Severity.FAILURE]
    if verdict.problem not in failures:
        return f": {verdict.problem}"
    return f", for {len(failures)} reasons" if len(failures) > 1 else ", for one reason"


def _headline(text: str, paper: Paper, colour: str) -> list[str]:
    return [paper.paint(line, colour) for line in paper.wrap(text, rest="  ")]


def _outlook(verdict: Verdict, paper: Paper) -> list[str]:
    """Profile and arithmetic, then the largest model of each method."""
    example = next(reach for reach in verdict.reaches if reach.plan)
    plan = example.plan
    assert plan is not None and plan.rollout is not None
    training, rollout = plan.roles["actor"].compute_dtype, plan.rollout
    apart = "" if rollout.compute_dtype == training else f" training, {rollout.compute_dtype} rollout"
    arithmetic = f"{training}{apart}, engine `{rollout.engine}`"
    return [
        *paper.wrap(f"profile `{verdict.profile}` ({verdict.summary}): {arithmetic}", first="  ", rest="    "),
        *(line for reach in verdict.reaches for line in _reach(reach, paper)),
        *(paper.paint(line, DIM) for line in paper.wrap(_advice(plan, example), first="  ", rest="    ")),
    ]


def _reach(reach: Reach, paper: Paper) -> list[str]:
    """`full PPO   Qwen2.5-1.5B-Instruct  21.1 of 21.2 GiB, micro-batch 4096 tokens, 52.8 GiB offloaded`."""
    rest = " " * 13
    if reach.plan is None or reach.model is None:
        return paper.wrap(f"{reach.method:<9}  no model fits: {reach.problem}", first="  ", rest=rest)
    plan, width = reach.plan, max(len(_short(name)) for name in LADDER)
    pool, tokens = plan.pool_of("actor"), plan.roles["actor"].max_tokens_per_micro_batch
    used = f"{format_bytes(pool.peak_bytes).removesuffix(' GiB')} of {format_bytes(pool.memory_available_bytes)}"
    aside = f", {format_bytes(pool.host_bytes)} offloaded" if pool.host_bytes and pool.device != "cpu" else ""
    line = f"{reach.method:<9}  {_short(reach.model):<{width}}  {used}, micro-batch {tokens} tokens{aside}"
    return paper.wrap(line, first="  ", rest=rest)


def _short(name: str) -> str:
    """Without the owner, and without what all of them are."""
    return name.rpartition("/")[2].removesuffix("-Instruct")


def _advice(plan: Plan, example: Reach) -> str:
    if plan.pool_of("actor").device == "cpu":
        return "memory holds these, a CPU takes hours to days; every part in minutes: `rlc train gsm8k-cpu`"
    return f"prompts and responses of 256 tokens; see `rlc plan {' '.join(example.settings)}`"
