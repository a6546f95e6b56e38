"""Machines made of files: each JSON file in tests/hosts holds a tree, links, variables and metadata."""

import json
import os
from pathlib import Path

import pytest

from tpumagic.runtime import Environment, detect

HOSTS = Path(__file__).parent.parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))


class Machine:
    """A machine built below a folder; counts how often its metadata server was asked."""

    def __init__(self, description: dict, root: Path) -> None:
        self.description, self.root, self.asked = description, root, 0
        for name, text in description["files"].items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, target in description["links"].items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(target, path)

    def fetch(self, key: str) -> str | None:
        self.asked += 1
        if self.description["metadata"] is None:
            raise OSError("no server")
        return self.description["metadata"].get(key)

    def detect(self, **environ: str) -> Environment:
        description = self.description
        return detect(self.root, {**description["environ"], **environ}, self.fetch, description["versions"])


@pytest.fixture
def machine(tmp_path):
    def build(name: str) -> Machine:
        return Machine(json.loads((HOSTS / f"{name}.json").read_text()), tmp_path / name)

    return build
