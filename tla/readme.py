"""The list of configurations for people, drawn from the manifest: ``python -m rallypoint.tla.readme`` prints it.

A test holds ``tla/README.md`` against it, so it cannot drift.
"""

from __future__ import annotations

from rallypoint.tla.manifest import Config, load_manifest


def configurations() -> str:
    """One Markdown item for each configuration, in the order of the manifest."""
    return "\n".join(f"- `{config.name}`: {config.about} {_verdict(config)}" for config in load_manifest())


def _verdict(config: Config) -> str:
    want, counts = config.expected, config.counts
    if want.verdict == "violated":
        text = f"**{want.property} is violated**" + (f" in {want.steps} steps" if want.steps is not None else "")
    else:
        sizes = f"{counts.states:,} states, {counts.edges:,} edges, depth {counts.depth}" if counts.states else ""
        text = "**Holds**" + (f": {sizes}" if sizes else "")
    formula = "" if config.specification == "Spec" else f", under {config.specification}"
    return f"{text}{formula}{'' if config.time == 'quick' else f' ({config.time})'}."


if __name__ == "__main__":
    print(configurations())
