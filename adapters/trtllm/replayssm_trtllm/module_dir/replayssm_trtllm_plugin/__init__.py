"""What `--custom_module_dirs` imports: the registration of the plugin's models."""

import replayssm_trtllm.models  # noqa: F401  imported to register
