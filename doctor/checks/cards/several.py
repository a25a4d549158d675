"""Machines with several cards: of different kinds, and what connects them.

A run trains on one device, `cuda:0`; the connection between cards matters to programs that use NCCL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rl_compat.capability.attention import sdpa_backends
from rl_compat.capability.binaries import wheel_supports
from rl_compat.capability.kernels import against_triton
from rl_compat.capability.precision import against_dtype
from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok, remedy
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.cards import device_ids, names, with_capability
from rl_compat.doctor.tables.rows import capability_text, is_unknown, library_row, serves
from rl_compat.doctor.tables.target import target_of
from rl_compat.doctor.tables.torch import cuda_of, releases, variants
from rl_compat.hardware.gpu.catalogue import find_gpu
from rl_compat.hardware.types import Device, Exchange, Hardware, Link
from rl_compat.units import format_bytes

ALIKE_FRACTION = 0.9
"fraction of the largest memory from which cards count as equally large"
KINDS = {
    "nvlink": "NVLink",
    "pcie_switch": "a PCIe switch",
    "pcie_host_bridge": "one PCIe host bridge",
    "numa_node": "one NUMA node",
    "system": "the link between processors",
}


def check_mixed_devices(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for one card or for several equal ones."""
    devices = hardware.devices
    if hardware.emulated is not None or len(devices) < 2:
        return
    capabilities = {device.compute_capability for device in devices}
    smallest = min(device.memory_total_bytes for device in devices)
    largest = max(device.memory_total_bytes for device in devices)
    if len(capabilities) > 1:
        yield _capabilities(hardware)
        yield from _one_build(hardware)
    if smallest < ALIKE_FRACTION * largest:
        listed = ", ".join(f"cuda:{device.index} {format_bytes(device.memory_total_bytes)}" for device in devices)
        why = "a run across them is limited by the smallest"
        yield ok("mixed_devices.memories", f"cards with different memory: {listed}", "cuda", "nvml", why=why)
    if len(capabilities) > 1 or smallest < ALIKE_FRACTION * largest:
        yield from _weaker_first(devices)


def _capabilities(hardware: Hardware) -> Finding:
    """The weakest card decides in a run across all of them; what that costs."""
    devices = hardware.devices
    best = max(device.compute_capability for device in devices)
    strong = tuple(device for device in devices if device.compute_capability == best)
    weak = [device for device in devices if device.compute_capability != best]
    lost = [name for name in _features(replace(hardware, devices=strong)) if name not in _features(hardware)]
    without = f"without {', '.join(lost)}" if lost else "with the choices of the weakest"
    listed = ", ".join(f"cuda:{gpu.index} {gpu.name} ({capability_text(gpu.compute_capability)})" for gpu in devices)
    return finding(
        "mixed_devices.capabilities",
        f"different cards: {listed}",
        *_choose(strong, f"use only {names(strong)}"),
        why=f"a run on one card uses cuda:0; a run across them works {without}, because {names(weak)} decides",
        affects=device_ids(devices),
    )


def _features(hardware: Hardware) -> list[str]:
    supported = {
        "bf16": not against_dtype(hardware, "bf16"),
        "flash attention": "flash" in sdpa_backends(hardware),
        "Triton and torch.compile": not against_triton(hardware),
    }
    return [name for name, available in supported.items() if available]


def _one_build(hardware: Hardware) -> Iterator[Finding]:
    """Whether one build of torch has code for every card."""
    target = target_of(hardware)
    build = target.best()
    if build is None:
        return
    release = next(row for row in releases() if row["newest"] == build.version)
    archs, cuda = dict(variants(release, target.machine))[build.variant], cuda_of(build.variant)
    served = [gpu for gpu in hardware.devices if wheel_supports(archs, gpu.compute_capability, cuda=cuda)]
    left_out = [device for device in hardware.devices if device not in served]
    label = f"torch {build.version}+{build.variant}"
    if not left_out:
        yield ok("mixed_devices.one_build", f"{label} has code for every card", "tables of torch builds")
        return
    yield finding(
        "mixed_devices.no_common_build",
        f"no torch for this driver and Python has code for all cards: {label} lacks code for {names(left_out)}",
        *_choose(served, f"hide {names(left_out)} from this environment"),
        affects=device_ids(left_out),
    )


def _weaker_first(devices: Sequence[Device]) -> Iterator[Finding]:
    """cuda:0, if another card has more memory and is not older, or is newer and not smaller."""
    first = devices[0]
    better = [device for device in devices[1:] if _beats(device, first)]
    if not better:
        return
    best = max(better, key=lambda device: (device.compute_capability, device.memory_total_bytes))
    yield finding(
        "mixed_devices.weaker_first",
        f"cuda:0 is `{first.name}` ({format_bytes(first.memory_total_bytes)}), cuda:{best.index} is `{best.name}` "
        f"({format_bytes(best.memory_total_bytes)})",
        *_choose([best], f"train on {best.name}"),
    )


def _beats(one: Device, other: Device) -> bool:
    """Whether a card is at least as good in memory and capability, and clearly better in one of them."""
    larger = one.memory_total_bytes * ALIKE_FRACTION > other.memory_total_bytes
    as_large = one.memory_total_bytes >= other.memory_total_bytes * ALIKE_FRACTION
    newer = one.compute_capability > other.compute_capability
    return as_large and one.compute_capability >= other.compute_capability and (larger or newer)


def _choose(devices: Sequence[Device], what: str) -> tuple[Remedy, ...]:
    """Show only those cards, by UUID, which does not depend on the order."""
    uuids = [device.uuid for device in devices]
    if not uuids or None in uuids:
        return ()
    return (shell(what, f"export CUDA_VISIBLE_DEVICES={','.join(map(str, uuids))}"),)


def check_links(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for one card, or if the connections are not known."""
    if hardware.emulated is not None or len(hardware.devices) < 2:
        return
    if hardware.links:
        yield _topology(hardware.links)
        yield from _doubtful(hardware)
        yield from _without_peers(hardware)
    yield from _disabled(hardware)


def _topology(links: Sequence[Link]) -> Finding:
    kinds = Counter(KINDS.get(link.kind or "", "an unknown connection") for link in links)
    listed = ", ".join(f"{count} through {kind}" for kind, count in kinds.most_common())
    known = [link.peer_access for link in links if link.peer_access is not None]
    peers = f"peer access between {sum(known)} of {len(known)}" if known else "peer access is unknown"
    what = f"{len(links)} {'pair' if len(links) == 1 else 'pairs'} of cards: {listed}; {peers}"
    return ok("links.topology", what, "nvml", "cuda", affects=("several GPUs",))


def _without_peers(hardware: Hardware) -> Iterator[Finding]:
    """Pairs that could access each other's memory and do not. GeForce cards and different cards cannot."""
    pairs = [link for link in hardware.links if link.peer_access is False]
    expected = [link for link in pairs if _could(*_ends(hardware, link))]
    if not pairs:
        return
    first, second = _ends(hardware, (expected or pairs)[0])
    more = f"; {len(pairs) - 1} more pairs cannot either" if len(pairs) > 1 else ""
    yield finding(
        "links.no_peer_access",
        f"cuda:{first.index} `{first.name}` and cuda:{second.index} `{second.name}` cannot access each other's memory"
        + more,
        *((remedy("no_access_control"),) if expected else ()),
        severity=Severity.NOTE if expected else Severity.OK,
    )


def _doubtful(hardware: Hardware) -> Iterator[Finding]:
    """Peer access between GeForce cards for which NVIDIA's driver does not support it."""
    if hardware.environment.get("NCCL_P2P_DISABLE", "0") != "0":
        return
    pairs = [_ends(hardware, link) for link in hardware.links if link.peer_access and link.kind != "nvlink"]
    cards = [first for first, second in pairs if _is_late_geforce(first) and _is_late_geforce(second)]
    if cards:
        yield finding(
            "links.doubtful_peer_access",
            f"CUDA reports peer access between `{cards[0].name}` cards, which do not support it",
            remedy("no_peer_access"),
        )


def _disabled(hardware: Hardware) -> Iterator[Finding]:
    environment = hardware.environment
    off = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if environment.get(name, "0") not in ("0", "")]
    peers = any(link.peer_access for link in hardware.links)
    direct = "NCCL_P2P_DISABLE" in off and peers and not any(_is_late_geforce(gpu) for gpu in hardware.devices)
    sockets = " and uses network sockets" if "NCCL_SHM_DISABLE" in off else ""
    if sockets or direct:
        yield finding(
            "links.switched_off",
            " and ".join(f"{name}=`{environment[name]}`" for name in off),
            unset(*off),
            why=f"NCCL does not use a faster connection between the cards{sockets}; a run on one card is not affected",
            where=tuple(off),
        )


def _ends(hardware: Hardware, link: Link) -> tuple[Device, Device]:
    by_index = {device.index: device for device in hardware.devices}
    return by_index[link.first], by_index[link.second]


def _could(first: Device, second: Device) -> bool:
    geforce = _is_late_geforce(first) or _is_late_geforce(second)
    return first.compute_capability == second.compute_capability and not geforce and not first.mig_profile


def _is_late_geforce(device: Device) -> bool:
    """GeForce cards have peer access over NVLink only from Ampere on, and none from Ada on."""
    gpu = find_gpu(device.name, device.memory_total_bytes)
    return gpu is not None and gpu.form == "consumer" and gpu.compute_capability >= (8, 0)


def check_nccl(hardware: Hardware) -> Iterator[Finding]:
    """Whether the NCCL of torch has code for the cards; nothing for one card."""
    torch, packages = hardware.software.torch, hardware.software.packages
    if hardware.emulated is not None or len(hardware.devices) < 2 or torch is None or torch.cuda is None:
        return
    package = f"nvidia-nccl-cu{torch.cuda.partition('.')[0]}"
    version = packages.get(package)
    row = library_row(package, version) if version else None
    if version is None or row is None or is_unknown(package, version):
        return
    without = [device for device in hardware.devices if not serves(row["sm"], device.compute_capability)]
    if not without:
        yield ok("nccl.has_code", f"NCCL {version} has code for {names(hardware.devices)}")
        return
    yield finding(
        "nccl.no_code",
        f"NCCL {version} has no code for {with_capability(without)}",
        remedy("use_gloo"),
        where=(package,),
        affects=("several GPUs", *device_ids(without)),
    )


def check_exchange(hardware: Hardware) -> Iterator[Finding]:
    """What came of a sum between two processes; one GPU has nothing to exchange with. Nothing if it was not tried."""
    found = hardware.exchange
    if found is None:
        if len(hardware.devices) == 1 and hardware.emulated is None:
            yield ok("exchange.one_device", "one GPU: values between GPUs were not tried", "cuda")
    elif found.error is not None:
        yield finding(
            "exchange.failed", f"a sum over `{found.backend}` between two processes failed: {found.error}", *_try(found)
        )
    elif found.num_wrong:
        what = f"a sum over `{found.backend}` between two processes has {found.num_wrong} wrong values"
        yield finding("exchange.wrong", what, *_try(found))
    else:
        yield ok("exchange.right", f"a sum over `{found.backend}` between two processes is right", found.backend)


def _try(found: Exchange) -> tuple[Remedy, ...]:
    return (remedy("no_peer_access" if found.backend == "nccl" else "gloo_loopback"),)
