"""Machines made of files: each JSON file in tests/hosts holds a tree, links, variables, metadata, packages and a process."""

import json
import os
from pathlib import Path

import pytest

from tpumagic import passes
from tpumagic.events import Backend, Host
from tpumagic.runtime import Environment, detect, host, problems
from tpumagic.runtime.library import Loaded
from tpumagic.runtime.problem import Problem
from tpumagic.runtime.process import Process

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

    @property
    def process(self) -> Process:
        given = self.description.get("process", {})
        library = Loaded(**given["library"]) if "library" in given else None
        return Process(tuple(given.get("imported", ())), given.get("keras_backend"), library)

    @property
    def backends(self) -> tuple[Backend, ...]:
        return tuple(
            Backend(**one | {"settings": tuple(map(tuple, one.get("settings", ())))})
            for one in self.description.get("backends", ())
        )

    def detect(self, **environ: str) -> Environment:
        description = self.description
        return detect(
            self.root,
            {**description["environ"], **environ},
            self.fetch,
            description["versions"],
            [str(self.root / folder) for folder in description["path"]],
            self.process,
        )

    def host(self) -> Host:
        return host(self.detect(), self.process)

    def problems(self) -> tuple[Problem, ...]:
        """What the card tells: of the machine, and of the frameworks on it."""
        standing = passes.standing(self.host(), self.backends)
        return problems.merged(
            problems.find(self.detect()),
            [Problem(f.title, f.fix, f.kind, f.severity, f.detail) for f in standing],
        )


@pytest.fixture
def machine(tmp_path):
    def build(name: str) -> Machine:
        return Machine(json.loads((HOSTS / f"{name}.json").read_text()), tmp_path / name)

    return build
