"""Device functions of the adapter: what the core's kernels do not do for FlashInfer's tensor contracts."""
