"""The doctor tries the patterns of the settings."""

from __future__ import annotations

from pathlib import Path

from recalld.doctor.examination import pattern_findings
from recalld.doctor.finding import Level
from schemas.settings import Settings


def test_it_is_told_by_its_place_and_each_list_once(tmp_path: Path) -> None:
    def agent(name: str, *patterns: str) -> dict[str, object]:
        return {"id": name, "workspace": tmp_path, "redaction": {"patterns": patterns}}

    settings = Settings.model_validate(
        {
            "home": tmp_path,
            "agents": [
                agent("a", "x", "(?:bird)?(b+)+$"),
                agent("b", "x", "(?:bird)?(b+)+$"),
                agent("c"),
                agent("d", "x"),
            ],
        }
    )
    findings = {one.agent: one for one in pattern_findings(settings)}
    assert [one.level for one in findings.values()] == [Level.OK, Level.WARNING]
    assert findings["a"].message.startswith("pattern 2 of redaction.patterns of a takes more than 0.2 s")
    assert "bird" not in findings["a"].message
