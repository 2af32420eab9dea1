"""Make the table of `docs/platforms.md`: which locked packages have no wheel, for each platform and Python.

It asks the package index with `pip download`; nothing is installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

_ROOT = Path(__file__).parents[1]
_BEGIN, _END = "<!-- table: begin (made by `make platforms`) -->\n", "<!-- table: end -->\n"
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_REFUSED = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)==")


@dataclass(frozen=True, slots=True)
class Platform:
    """One kind of machine: the `tags` of its wheels, and what markers say there."""

    title: str
    tags: tuple[str, ...]
    system: str
    machine: str

    def markers(self, python: str) -> dict[str, str]:
        """Return the environment that markers are evaluated in."""
        return {
            "python_version": python,
            "python_full_version": f"{python}.9",
            "sys_platform": self.system.lower(),
            "platform_system": self.system,
            "platform_machine": self.machine,
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }


def _glibc(machine: str) -> tuple[str, ...]:
    return (f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in range(28, 4, -1)))


PLATFORMS = (
    Platform("Linux x86_64 (glibc 2.28)", _glibc("x86_64"), "Linux", "x86_64"),
    Platform("Linux aarch64 (glibc 2.28)", _glibc("aarch64"), "Linux", "aarch64"),
    Platform("macOS 14, Apple silicon", ("macosx_14_0_arm64",), "Darwin", "arm64"),
    Platform("macOS 14, Intel", ("macosx_14_0_x86_64",), "Darwin", "x86_64"),
    Platform("Alpine x86_64 (musl 1.2)", ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64"), "Linux", "x86_64"),
    Platform("Alpine aarch64 (musl 1.2)", ("musllinux_1_2_aarch64", "musllinux_1_1_aarch64"), "Linux", "aarch64"),
)


def locked() -> list[Requirement]:
    """Return what the lock holds, markers included."""
    lines = (_ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [Requirement(line.rstrip("\\ ")) for line in lines if re.match(r"[A-Za-z0-9]", line)]


def without_wheel(platform: Platform, python: str, requirements: list[Requirement], folder: Path) -> list[str]:
    """Return the packages that have no wheel there; wheels that were found are left in the folder."""
    wanted = {
        requirement.name: f"{requirement.name}{requirement.specifier}"
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate(platform.markers(python))
    }
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder)]
    command += ["--disable-pip-version-check", "--python-version", python, "--implementation", "cp"]
    for tag in platform.tags:
        command += ["--platform", tag]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        command += ["--abi", abi]
    missing: list[str] = []
    while True:
        done = subprocess.run([*command, *wanted.values()], capture_output=True, text=True, check=False)  # noqa: S603 - pip
        if done.returncode == 0:
            return missing
        refused = _REFUSED.search(done.stderr)
        if refused is None:
            raise SystemExit(done.stderr)
        missing.append(refused[1])
        del wanted[refused[1]]


def rows() -> Iterator[str]:
    """Yield the table's lines, those of each platform when they are known."""
    yield f"| | {' | '.join(f'Python {python}' for python in _PYTHONS)} |\n|{'---|' * (len(_PYTHONS) + 1)}\n"
    requirements = locked()
    everywhere: set[str] = set()
    for platform in PLATFORMS:
        cells = []
        for python in _PYTHONS:
            with tempfile.TemporaryDirectory() as name:
                left = [one for one in requirements if one.name not in everywhere]
                missing = without_wheel(platform, python, left, Path(name))
                pure = {wheel.name.split("-")[0] for wheel in Path(name).glob("*-none-any.whl")}
                everywhere |= {name.replace("_", "-").lower() for name in pure}
            cells.append(", ".join(missing) or "all")
        yield f"| {platform.title} | {' | '.join(cells)} |\n"


def main() -> None:
    """Replace the table in the file that the command line names."""
    file = Path(sys.argv[1])
    before, _, rest = file.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    file.write_text(f"{before}{_BEGIN}{''.join(rows())}{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
