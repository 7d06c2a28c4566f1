"""The requirements: what must hold, stated once and judged everywhere."""
