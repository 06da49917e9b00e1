"""A platform plugin of SGLang for tests: device cpu, Triton kernels interpreted. Nothing here is for serving."""


def activate() -> str:
    """Entry point `sglang.srt.platforms`."""
    return "replayssm_sglang_cpu.platform.InterpretedCpu"


def register() -> None:
    """Entry point `sglang.srt.plugins`, called in every process."""
    from replayssm_sglang_cpu import device, engine, interpreter

    device.pretend()
    interpreter.complete()
    engine.redirect()
