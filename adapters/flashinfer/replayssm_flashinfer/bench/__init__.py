"""`replayssm bench flashinfer`: one function, two implementations, one run."""
