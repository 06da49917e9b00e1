"""What SGLang asks of a device."""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class InterpretedCpu(CpuDeviceMixin, SRTPlatform):
    """A CPU that claims Triton, without graphs. Out of tree, so that SGLang takes none of its own CPU paths."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities(supports_triton=True, graph_capture=False)

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_default_speculative_draft_attention_backend(self, algorithm: object) -> str:
        return "torch_native"

    def supports_speculative_algorithm(self, algorithm: object) -> bool:
        return True

    def supports_speculative_draft_attention_backend(self, algorithm: object, backend: object) -> bool:
        return True

    def support_mamba_cache_extra_buffer(self) -> bool:
        return True

    def is_pin_memory_available(self, device: object = None) -> bool:
        return False
