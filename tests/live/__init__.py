"""The live property run."""
