"""What the build adds to pyproject.toml: man pages, completions, and a README for an index.

Man pages and completions are made from the command's own table of options, by the sources that are
being packed. An index shows the README alone, where a link to docs/ leads nowhere: there it is
plain text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(
    r"^(?:<picture>.*?)?!\[[^\]]*\]\((?!https?:)[^)]*\)(?:</picture>)?\n+", re.MULTILINE
)
MORE = re.compile(r"^## More\n\n.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
PAGES = """## More

The pages that are named here lie in the folder docs/ of the source. `make docs` builds them as a
site with a search. MIT licence."""
WHERE = (
    ("Install it from a checkout, with", "Install it with"),
    ("pip install .", "pip install lifehold"),
)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)[^)\s]*\)")
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
MADE = "import sys; from lifehold.cli.completion import shared; shared(sys.argv[1])"


def for_an_index(text: str) -> str:
    """The README without what leads nowhere outside of the source."""
    text = COMMENT.sub("", PICTURE.sub("", text))
    text = LINK.sub(r"\1", MORE.sub(PAGES, text))
    for here, there in WHERE:
        text = text.replace(here, there)
    return text


class ReadmeForIndex(MetadataHookInterface):
    """Gives `readme`, which pyproject.toml calls dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict) -> None:
        with open(os.path.join(self.root, "README.md"), encoding="utf-8") as file:
            text = for_an_index(file.read())
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class ManualsAndCompletions(BuildHookInterface):
    """Puts them into the wheel, below `share`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict) -> None:
        self.made = None
        if self.target_name != "wheel" or version == "editable":
            return
        self.made = tempfile.mkdtemp()
        source = os.path.join(self.root, "src")
        environment = os.environ | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-c", MADE, self.made], env=environment, check=True)
        for folder, _, names in sorted(os.walk(self.made)):
            for name in sorted(names):
                path = os.path.join(folder, name)
                below = os.path.relpath(path, self.made).replace(os.sep, "/")
                build_data["shared_data"][path] = f"share/{below}"

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        if self.made is not None:
            shutil.rmtree(self.made, ignore_errors=True)
