"""The ``rallypoint`` command: one module per sub-command."""
