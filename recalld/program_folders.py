"""Where the programs whose agents have memories keep their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recalld.hooks.entry import absolute


@dataclass(frozen=True, slots=True)
class ProgramFolders:
    """Absolute, and not looked at: none of them need exist.

    `openclaw`: its state folders, the one it uses now first. `openclaw_config`: its settings file where that was moved.
    """

    claude_code: Path
    codex: Path
    openclaw: tuple[Path, ...]
    openclaw_config: Path | None = None

    @classmethod
    def named_by(cls, environment: Mapping[str, str]) -> ProgramFolders:
        """The usual folders below the user's own, unless the programs' variables name others."""
        state, config = environment.get("OPENCLAW_STATE_DIR"), environment.get("OPENCLAW_CONFIG_PATH")
        return cls(
            claude_code=Path(absolute(environment.get("CLAUDE_CONFIG_DIR") or "~/.claude")),
            codex=Path(absolute(environment.get("CODEX_HOME") or "~/.codex")),
            openclaw=tuple(Path(absolute(folder)) for folder in ([state] if state else ["~/.openclaw", "~/.clawdbot"])),
            openclaw_config=Path(absolute(config)) if config else None,
        )
