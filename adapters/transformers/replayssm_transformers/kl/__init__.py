"""`replayssm eval kl`: KL to the fp32 recurrence over length, of any hybrid model on any text."""
