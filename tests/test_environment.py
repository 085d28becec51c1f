"""One list of packages: environment.yml includes it, every pin is exact."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def test_environment_yml_is_the_list_and_nothing_else() -> None:
    """Catches a package that conda users get and pip users do not."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    packages = environment["dependencies"]
    assert packages[:2] == ["python=3.11", "pip"]
    assert packages[2:] == [{"pip": ["-r requirements.txt"]}]


def test_every_requirement_is_pinned_with_a_reason() -> None:
    """Catches an unpinned torch, which pulls gigabytes, and a package nobody can account for."""
    lines = [
        line
        for name in ("requirements.txt", "requirements-model.txt", "requirements-gemma.txt")
        for line in (ROOT / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    pin = re.compile(r"^[a-z0-9-]+==[0-9][0-9a-z.]*( ; [^#]+)?(\s+#.*)?$")
    assert all(pin.match(line) for line in lines), lines
    assert any(line.startswith("torch==2.13.0") for line in lines)


def test_make_help_describes_every_target() -> None:
    """Catches a phony target without a description."""
    makefile = (ROOT / "Makefile").read_text()
    names = re.findall(r"^\.PHONY: (.+)$", makefile, re.M)
    phony = {name for line in names for name in line.split()}
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    assert phony == described
