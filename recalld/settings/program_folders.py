"""Folders of the programs whose agents have memories."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    vaults, or are vaults. `server_files`: settings files that list MCP servers for all projects, by program.
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
    server_files: Mapping[str, Path] = field(default_factory=dict)

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
            server_files={name: Path(absolute(file)) for name, file in _server_files(environment, config_home).items()},
        )


def _server_files(environment: Mapping[str, str], config_home: str) -> dict[str, str]:
    """Return the settings files with MCP servers.

    As in Claude Code 2.1, Codex 0.171, OpenClaw 2026.9, Gemini CLI 0.61, OpenCode 1.18, and in the manuals of Cursor,
    VS Code and Windsurf of November 2026.
    """
    code = "~/Library/Application Support" if sys.platform == "darwin" else config_home
    opencode = [f"{config_home}/opencode/{name}" for name in ("opencode.jsonc", "opencode.json")]
    state = environment.get("OPENCLAW_STATE_DIR") or "~/.openclaw"
    return {
        "claude-code": f"{environment.get('CLAUDE_CONFIG_DIR') or '~'}/.claude.json",
        "codex": f"{environment.get('CODEX_HOME') or '~/.codex'}/config.toml",
        "openclaw": environment.get("OPENCLAW_CONFIG_PATH") or f"{state}/openclaw.json",
        "cursor": "~/.cursor/mcp.json",
        "gemini": f"{environment.get('GEMINI_CLI_HOME') or '~'}/.gemini/settings.json",
        "vscode": f"{code}/Code/User/mcp.json",
        "windsurf": "~/.codeium/windsurf/mcp_config.json",
        "opencode": next((file for file in opencode if Path(absolute(file)).exists()), opencode[1]),
    }
