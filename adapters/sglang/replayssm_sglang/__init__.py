"""ReplaySSM in SGLang: a plugin with a launch flag, `sglang serve --replayssm [PRESET]`.

Installed beside SGLang it does nothing until it is asked: by the flag, or by REPLAYSSM_CONFIG (JSON or a path) for users of
`sglang.Engine`. What it cannot serve it refuses before the weights load, in one line.
"""
