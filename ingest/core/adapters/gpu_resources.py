"""How many GPUs a Kubernetes resource list stands for, in milli-GPU, over the device plugins in use.

Shapes: a resource list is `{resource name: quantity}` of ONE container or pod, so that per-device
modifiers (HAMi cores and memory) can be told from counts. Everything is exact; where the share of a GPU
is not in the record and not in the options, the record is refused instead of charging a whole GPU for a
part of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ingest.core.adapters.base import Refusal, SourceConfig, decimal_of, quantity_milli

WHOLE_DEVICES = frozenset(
    {
        "nvidia.com/gpu",
        "nvidia.com/pgpu",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "huawei.com/npu",
        "cambricon.com/mlu",
        "hygon.com/dcunum",
        "iluvatar.ai/gpu",
        "metax-tech.com/gpu",
        "mthreads.com/vgpu",
        "volcano.sh/vgpu-number",
    }
)
"""Resources that count devices; 1 = one GPU unless a modifier below shares the device."""

_MIG = re.compile(r"nvidia\.com/mig-(\d)g\.\d+gb(?:[.+].*)?\Z", re.ASCII)
_ASCEND = re.compile(r"huawei\.com/Ascend(\w+?)(?:-(\d+)c(?:\.\w+)?)?\Z", re.ASCII)
_ASCEND_MODIFIER = re.compile(r"huawei\.com/Ascend\w+-(?:memory|core)\Z", re.ASCII)

ASCEND_CORES = {"910": 32, "310P": 8}
"""AI cores of a whole chip by which its device plugin names vNPU sizes (`Ascend910-16c` is half a chip)."""

MIG_SLICES = 7
"""Compute slices of a whole GPU; `mig-2g.*` is 2 of them."""

_PERCENT_OF_GPU = frozenset(
    {
        "koordinator.sh/gpu",
        "koordinator.sh/gpu-core",
        "aliyun.com/gpu-core.percentage",
        "nvidia.com/total-gpucores",
    }
)
"""Resources counted in hundredths of one GPU (100 = a whole one)."""

_SHARE_CORES = ("nvidia.com/gpucores", "volcano.sh/vgpu-cores")
_SHARE_MEMORY_PERCENT = ("nvidia.com/gpumem-percentage",)
_SHARE_MEMORY_MIB = ("nvidia.com/gpumem", "volcano.sh/vgpu-memory", "aliyun.com/gpu-mem")
_KOORDINATOR_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"
_SHARED_REPLICA = re.compile(r"nvidia\.com/(?:gpu|mig-\d+g\.\d+gb(?:[.+].*)?)\.shared\Z", re.ASCII)

_MODIFIERS = frozenset({*_SHARE_CORES, *_SHARE_MEMORY_PERCENT, *_SHARE_MEMORY_MIB, _KOORDINATOR_MEMORY_RATIO})


def sanitised(name: str) -> str:
    """`nvidia.com/gpu` as kube-state-metrics writes it in labels: `nvidia_com_gpu`."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def unsanitised(label: str) -> str:
    """The resource name behind a label of kube-state-metrics; a name that is not sanitised passes."""
    if "/" in label:
        return label
    for name in (*WHOLE_DEVICES, *_PERCENT_OF_GPU, *_MODIFIERS):
        if sanitised(name) == label:
            return name
    mig = re.match(r"nvidia_com_mig_(\d+g)_(\d+gb)(?:_(\w+))?\Z", label)
    if mig:
        return f"nvidia.com/mig-{mig[1]}.{mig[2]}" + (f".{mig[3].replace('_', '.')}" if mig[3] else "")
    ascend = re.match(r"huawei_com_(Ascend[0-9A-Za-z]+)(?:_(\w+))?\Z", label)
    if ascend:
        return f"huawei.com/{ascend[1]}" + (f"-{ascend[2].replace('_', '-')}" if ascend[2] else "")
    return label


def is_gpu_resource(name: str, source: SourceConfig) -> bool:
    """Whether the name says anything about GPUs (counts of devices, parts of devices, or modifiers of a
    share).
    """
    return (
        name in _configured(source)
        or name in WHOLE_DEVICES
        or name in _PERCENT_OF_GPU
        or name in _MODIFIERS
        or any(pattern.match(name) for pattern in (_MIG, _ASCEND, _ASCEND_MODIFIER, _SHARED_REPLICA))
    )


def counts_devices(name: str, source: SourceConfig) -> bool:
    """Whether a quantity of this resource alone is a number of GPUs (quota objects list such resources
    one by one).
    """
    if name in _MODIFIERS or _ASCEND_MODIFIER.match(name):
        return False
    return is_gpu_resource(name, source)


def metered_milli(resources: Mapping[str, Any], source: SourceConfig, pool: str) -> int:
    """What the pool's books count of one container's or pod's resource list, in thousandths of its unit.

    A pool that meters something else than GPUs (`meter = "cpu"`) reads that resource itself.
    """
    meter = source.meter(pool)
    if meter != "gpu":
        return quantity_milli(resources[meter]) if meter in resources else 0
    return gpu_milli(resources, source)


def gpu_milli(resources: Mapping[str, Any], source: SourceConfig) -> int:
    """Milli-GPU of one container's or pod's resource list.

    Raises `Refusal("unknown_resource")` for a shared GPU whose share nobody says, `bad_quantity` for
    unreadable numbers.
    """
    return sum(_parts(resources, source))


def _parts(resources: Mapping[str, Any], source: SourceConfig) -> Iterator[int]:
    configured = _configured(source)
    for name, value in resources.items():
        if name in configured:
            yield quantity_milli(value) * configured[name] // 1000
        elif name in WHOLE_DEVICES:
            yield _shared_devices(quantity_milli(value), resources, source)
        elif name == "koordinator.sh/gpu-core" and "koordinator.sh/gpu" in resources:
            continue  # `gpu` is shorthand for `gpu-core` and `gpu-memory-ratio`; admission may leave both
        elif name in _PERCENT_OF_GPU or (
            name == _KOORDINATOR_MEMORY_RATIO and not _PERCENT_OF_GPU & resources.keys()
        ):
            yield quantity_milli(value) // 100
        elif name == "aliyun.com/gpu-mem" and not _PERCENT_OF_GPU & resources.keys():
            yield quantity_milli(value) // _device_memory("gpu_memory_gib", name, source)
        else:
            yield from _partition(name, value, resources, source)


def _partition(name: str, value: Any, resources: Mapping[str, Any], source: SourceConfig) -> Iterator[int]:
    """MIG slices, Ascend chips and their virtual parts, time-sliced replicas."""
    if mig := _MIG.match(name):
        yield quantity_milli(value) * min(int(mig[1]), MIG_SLICES) // MIG_SLICES
    elif _SHARED_REPLICA.match(name):
        example = f"{{{name!r} = 250}}"
        raise Refusal(
            "unknown_resource",
            f"{name} is a time-sliced replica; say its size in options.gpu_resources, such as {example}",
        )
    elif _ASCEND_MODIFIER.match(name):
        return
    elif ascend := _ASCEND.match(name):
        chip, cores = ascend.groups()
        if cores is None:
            yield _ascend_chips(name, quantity_milli(value), resources, source)
        elif chip in ASCEND_CORES:
            yield quantity_milli(value) * int(cores) // ASCEND_CORES[chip]
        else:
            raise Refusal("unknown_resource", f"{name}: say its size in options.gpu_resources, in milli-GPU")


def _shared_devices(count_milli: int, resources: Mapping[str, Any], source: SourceConfig) -> int:
    """Devices of a HAMi or Volcano vGPU request: the count times the larger of the core and memory shares."""
    percents = [decimal_of(resources[n]) for n in (*_SHARE_CORES, *_SHARE_MEMORY_PERCENT) if n in resources]
    for name in _SHARE_MEMORY_MIB:
        if name in resources:
            memory = quantity_milli(resources[name])
            percents.append(decimal_of(memory) / (10 * _device_memory("gpu_memory_mib", name, source)))
    percents = [percent for percent in percents if percent > 0]
    return int(count_milli * min(max(percents), decimal_of(100)) // 100) if percents else count_milli


def _ascend_chips(name: str, count_milli: int, resources: Mapping[str, Any], source: SourceConfig) -> int:
    memory = resources.get(f"{name}-memory")
    if memory is None:
        return count_milli
    whole_mib = _device_memory("gpu_memory_mib", f"{name}-memory", source)
    return count_milli * min(quantity_milli(memory), whole_mib * 1000) // (whole_mib * 1000)


def _device_memory(option: str, name: str, source: SourceConfig) -> int:
    size = source.option(option, 0)
    if size <= 0:
        raise Refusal(
            "unknown_resource",
            f"{name} asks for part of a GPU by memory; say the memory of a whole one in options.{option}",
        )
    return int(size)


def _configured(source: SourceConfig) -> Mapping[str, int]:
    """options.gpu_resources: resource name -> milli-GPU of one unit; wins over every rule here."""
    table = source.option("gpu_resources", {})
    return {str(name): int(milli) for name, milli in table.items()}


def pod_milli(pod: Mapping[str, Any], source: SourceConfig, pool: str) -> int:
    """What a pod holds: the larger of its containers' sum and its largest init container.

    `pod` is a Pod object or a pod template. KAI fractions (annotation `gpu-fraction`) count as such.
    """
    spec = pod.get("spec") or {}
    running = sum(_container_milli(c, source, pool) for c in spec.get("containers") or [])
    largest_init = 0
    for container in spec.get("initContainers") or []:
        milli = _container_milli(container, source, pool)
        if container.get("restartPolicy") == "Always":
            running += milli  # a sidecar keeps its devices beside the containers
        else:
            largest_init = max(largest_init, milli)
    total = max(running, largest_init)
    return total or (_annotated_fraction(pod) if source.meter(pool) == "gpu" else 0)


def _container_milli(container: Mapping[str, Any], source: SourceConfig, pool: str) -> int:
    declared = container.get("resources") or {}
    return metered_milli({**(declared.get("limits") or {}), **(declared.get("requests") or {})}, source, pool)


def _annotated_fraction(pod: Mapping[str, Any]) -> int:
    """KAI's shared GPUs: `gpu-fraction` of each of `gpu-fraction-num-devices` devices."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if "gpu-fraction" in annotations:
        devices = decimal_of(annotations.get("gpu-fraction-num-devices", 1))
        return int(decimal_of(annotations["gpu-fraction"]) * devices * 1000)
    if "gpu-memory" in annotations:
        raise Refusal(
            "unknown_resource", "annotation gpu-memory asks for part of a GPU whose size is not recorded"
        )
    return 0
