"""What the Makefile installs is there to be installed: pip only warns of an extra that does not exist."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_set_of_packages_that_make_installs_is_an_extra():
    rule = re.search(r"^(\.venv/\w+(?: \.venv/\w+)+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = {Path(stamp).name for stamp in rule[1].split()}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"demo", "test", "lab", "dev"} <= asked
    assert asked <= set(extras)
