"""ReplaySSM in Hugging Face transformers: the embedded engine."""
