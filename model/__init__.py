"""The pure transition model: no clock, no I/O, no randomness, no torch. Every value is hashable."""
