"""`replayssm eval reads`: what a low-precision copy's scales are worth on a model's own states and queries."""
