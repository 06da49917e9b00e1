"""Float64 truth in plain loops: the recurrence itself. `backends.naive` is the replay protocol over it."""
