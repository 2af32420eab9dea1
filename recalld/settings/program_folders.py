"""Folders of the programs whose agents have memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recalld.settings.places import absolute

#: Where Obsidian's settings lie on macOS, and where flatpak and snap put them.
_OBSIDIAN_FOLDERS = (
    "~/Library/Application Support",
    "~/.var/app/md.obsidian.Obsidian/config",
    "~/snap/obsidian/current/.config",
)

#: The last is iCloud's, where Obsidian on macOS keeps the vaults that it shares with phones.
_VAULT_PLACES = (
    "~",
    "~/Documents",
    "~/Obsidian",
    "~/Dropbox",
    "~/Library/Mobile Documents/iCloud~md~obsidian/Documents",
)


@dataclass(frozen=True, slots=True)
class ProgramFolders:
    """Absolute folders; none of them need exist.

    `openclaw`: its state folders, the one it uses now first. `openclaw_config`: its settings file where that was moved.
    `basic_memory`, `qmd`: their settings files. `obsidian`: its lists of vaults; `vault_places`: folders that hold
    vaults, or are vaults.
    """

    claude_code: Path
    codex: Path
    gemini_cli: Path
    qwen_code: Path
    copilot: Path
    cursor: Path
    opencode: Path
    openclaw: tuple[Path, ...]
    openclaw_config: Path | None = None
    basic_memory: Path | None = None
    qmd: Path | None = None
    obsidian: tuple[Path, ...] = ()
    vault_places: tuple[Path, ...] = ()

    @property
    def hook_files(self) -> dict[str, Path]:
        """Settings files that hold hooks, by program."""
        return {"claude-code": self.claude_code / "settings.json", "codex": self.codex / "hooks.json"}

    @classmethod
    def named_by(cls, environment: Mapping[str, str]) -> ProgramFolders:
        """Return the usual folders below the user's own, unless the programs' variables name others."""
        state, config = environment.get("OPENCLAW_STATE_DIR"), environment.get("OPENCLAW_CONFIG_PATH")
        config_home = environment.get("XDG_CONFIG_HOME") or "~/.config"
        return cls(
            claude_code=Path(absolute(environment.get("CLAUDE_CONFIG_DIR") or "~/.claude")),
            codex=Path(absolute(environment.get("CODEX_HOME") or "~/.codex")),
            gemini_cli=Path(absolute(environment.get("GEMINI_CLI_HOME") or "~")) / ".gemini",
            qwen_code=Path(absolute(environment.get("QWEN_HOME") or "~/.qwen")),
            copilot=Path(absolute(environment.get("COPILOT_HOME") or "~/.copilot")),
            cursor=Path(absolute(environment.get("CURSOR_CONFIG_DIR") or "~/.cursor")),
            opencode=Path(absolute(environment.get("XDG_DATA_HOME") or "~/.local/share")) / "opencode",
            openclaw=tuple(Path(absolute(folder)) for folder in ([state] if state else ["~/.openclaw", "~/.clawdbot"])),
            openclaw_config=Path(absolute(config)) if config else None,
            basic_memory=Path(absolute(environment.get("BASIC_MEMORY_CONFIG_DIR") or "~/.basic-memory"))
            / "config.json",
            qmd=Path(absolute(environment.get("QMD_CONFIG_DIR") or f"{config_home}/qmd")) / "index.yml",
            obsidian=tuple(
                Path(absolute(f"{folder}/obsidian/obsidian.json")) for folder in (config_home, *_OBSIDIAN_FOLDERS)
            ),
            vault_places=tuple(Path(absolute(folder)) for folder in _VAULT_PLACES),
        )
