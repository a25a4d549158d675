"""What lies between the cards, and whether NCCL can use it; only for those who run NCCL across cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.cards import capability_text, names
from rl_compat.doctor.tables.rows import is_unknown, library_row, serves
from rl_compat.hardware.gpu.catalogue import find_gpu
from rl_compat.hardware.types import Device, Hardware, Link

KINDS = {
    "nvlink": "NVLink",
    "pcie_switch": "a PCIe switch",
    "pcie_host_bridge": "one PCIe host bridge",
    "numa_node": "one NUMA node",
    "system": "the link between processors",
}
ONE_DEVICE = "a run of this project trains on one card and is not touched"


def check_links(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for one card, or where nothing is known of what lies between them."""
    if hardware.emulated is not None or len(hardware.devices) < 2:
        return
    if hardware.links:
        yield _topology(hardware.links)
        yield from _doubtful(hardware)
        yield from _without_peers(hardware)
    yield from _switched_off(hardware)


def _topology(links: Sequence[Link]) -> Finding:
    kinds = Counter(KINDS.get(link.kind or "", "an unknown way") for link in links)
    listed = ", ".join(f"{count} by {kind}" for kind, count in kinds.most_common())
    known = [link.peer_access for link in links if link.peer_access is not None]
    peers = f"; peer access in {sum(known)} of {len(known)}" if known else "; peer access is not known"
    return Finding(
        id="links.topology",
        severity=Severity.OK,
        what=f"{len(links)} {'pair' if len(links) == 1 else 'pairs'} of cards: {listed}{peers}",
        where=("nvml", "cuda"),
        affects=("several GPUs",),
    )


def _without_peers(hardware: Hardware) -> Iterator[Finding]:
    """Pairs that could reach each other and do not. GeForce cards and unlike cards cannot."""
    pairs = [link for link in hardware.links if link.peer_access is False]
    expected = [link for link in pairs if _could(*_ends(hardware, link))]
    if not pairs:
        return
    first, second = _ends(hardware, (expected or pairs)[0])
    yield Finding(
        id="links.no_peer_access",
        severity=Severity.NOTE if expected else Severity.OK,
        what=f"cuda:{first.index} `{first.name}` and cuda:{second.index} `{second.name}` cannot read each other's "
        "memory" + (f", nor can {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""),
        why=f"NCCL goes through host memory between them, slower; {ONE_DEVICE}",
        where=("cuda",),
        affects=("several GPUs",),
        remedies=(_access_control(),) if expected else (),
    )


def _doubtful(hardware: Hardware) -> Iterator[Finding]:
    """Peer access between GeForce cards that NVIDIA's driver does not give it to."""
    if hardware.environment.get("NCCL_P2P_DISABLE", "0") != "0":
        return
    pairs = [_ends(hardware, link) for link in hardware.links if link.peer_access and link.kind != "nvlink"]
    cards = [first for first, second in pairs if _is_late_geforce(first) and _is_late_geforce(second)]
    if not cards:
        return
    yield Finding(
        id="links.doubtful_peer_access",
        severity=Severity.WARNING,
        what=f"CUDA reports peer access between cards of the kind `{cards[0].name}`, which has none by design",
        why=f"NCCL then hangs or computes wrong sums, unless the driver was changed to allow it; {ONE_DEVICE}",
        where=("cuda",),
        affects=("several GPUs",),
        remedies=(shell("let NCCL go through host memory", "export NCCL_P2P_DISABLE=1", sure=Sureness.UNSURE),),
    )


def _switched_off(hardware: Hardware) -> Iterator[Finding]:
    environment = hardware.environment
    off = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if environment.get(name, "0") not in ("0", "")]
    peers = any(link.peer_access for link in hardware.links)
    direct = "NCCL_P2P_DISABLE" in off and peers and not any(_is_late_geforce(gpu) for gpu in hardware.devices)
    if "NCCL_SHM_DISABLE" in off or direct:
        yield Finding(
            id="links.switched_off",
            severity=Severity.NOTE,
            what=f"{' and '.join(f'{name}=`{environment[name]}`' for name in off)}",
            why="NCCL leaves a faster way between the cards unused"
            + (", down to network sockets" if "NCCL_SHM_DISABLE" in off else "")
            + f"; {ONE_DEVICE}",
            where=tuple(off),
            affects=("several GPUs",),
            remedies=(unset(*off),),
        )


def _ends(hardware: Hardware, link: Link) -> tuple[Device, Device]:
    by_index = {device.index: device for device in hardware.devices}
    return by_index[link.first], by_index[link.second]


def _could(first: Device, second: Device) -> bool:
    geforce = _is_late_geforce(first) or _is_late_geforce(second)
    return first.compute_capability == second.compute_capability and not geforce and not first.mig_profile


def _is_late_geforce(device: Device) -> bool:
    """GeForce cards from Ampere on reach each other by NVLink only, and have none from Ada on."""
    gpu = find_gpu(device.name, device.memory_total_bytes)
    return gpu is not None and gpu.form == "consumer" and gpu.compute_capability >= (8, 0)


def _access_control() -> Remedy:
    return Remedy(
        what="where the cards share a switch or bridge: switch off the IOMMU or the access control (ACS) of the PCIe "
        "bridges in the firmware's setup; in a virtual machine the host has to",
        step=Step.SYSTEM,
    )


def check_nccl(hardware: Hardware) -> Iterator[Finding]:
    """Whether the NCCL that torch brings has code for the cards; nothing for one card."""
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
        yield Finding(
            id="nccl.has_code", severity=Severity.OK, what=f"NCCL {version} has code for {names(hardware.devices)}"
        )
        return
    capabilities = ", ".join(sorted({capability_text(device.compute_capability) for device in without}))
    yield Finding(
        id="nccl.no_code",
        severity=Severity.WARNING,
        what=f"NCCL {version} has no code for {names(without)} ({capabilities})",
        why=f"what uses NCCL across these cards stops with `no kernel image`; {ONE_DEVICE}",
        where=(package,),
        affects=("several GPUs", *(f"cuda:{device.index}" for device in without)),
        remedies=(
            Remedy(what="use one of these cards, or the backend `gloo` of torch.distributed", step=Step.SETTING),
        ),
    )


CHECKS: tuple[Check, ...] = (
    Check(id="links", question="how do the cards reach each other?", run=check_links),
    Check(id="nccl", question="does NCCL have code for the cards?", run=check_nccl),
)
