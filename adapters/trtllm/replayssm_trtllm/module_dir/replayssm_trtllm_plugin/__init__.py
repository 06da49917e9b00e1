"""What `--custom_module_dirs` imports: the registration of the plugin's models."""

from replayssm_trtllm import models as models
