"""Float64 truth in plain loops: the recurrence itself, and the replay protocol over it."""
