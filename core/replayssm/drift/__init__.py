"""Error of the state against float64 over many thousands of steps, precision policy by precision policy."""
