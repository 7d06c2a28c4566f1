"""The protocol in TLA+, and the tools around it: run TLC, read what it prints, compare state graphs.

May live here: the specifications, the manifest of checked configurations, Python that drives TLC and reads its output.
Must not live here: anything that decides what a worker does (that is ``model``), or that talks to an etcd server.
"""

from pathlib import Path

SPEC_DIR = Path(__file__).parent
"""Where the ``.tla`` files and the manifest are; nothing is ever written there."""
