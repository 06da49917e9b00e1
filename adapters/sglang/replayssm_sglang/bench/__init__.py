"""`replayssm bench sglang`: decode steps and throughput of the real engine, plain, with its own replay and with ours.

Published geometries with dummy weights. One engine a process, for a second one in the same process measures slower.
"""
