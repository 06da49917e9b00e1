"""Triton kernels: one family over the one recurrence, switched at compile time. Also run under TRITON_INTERPRET=1."""
