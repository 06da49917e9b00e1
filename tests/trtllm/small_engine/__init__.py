"""A small engine with TensorRT-LLM's names, signatures and rules, in own words and on the CPU.

It exists so that the adapter can be driven through whole request lives where TensorRT-LLM cannot be installed. Facts are
recorded in `contract.json` with their public sources; what is here follows them and is no copy of anything.
"""
