"""A hook of mkdocs: adds the pages next to docs/, and adapts links to the site."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File
from pymdownx.slugs import slugify
from pymdownx.superfences import fence_code_format

from repository import ROOT

# On the site, these have the same paths as in the repository. Files in docs/ are at the top of the site.
BESIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "benchmarks/NOTES.md",
    "benchmarks/README.md",
    "benchmarks/guard.json",
)

_LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")


def on_config(config: Any) -> Any:
    """Sets options that YAML can express only with tags of Python."""
    config["mdx_configs"]["toc"]["slugify"] = slugify(case="lower")
    config["mdx_configs"]["pymdownx.superfences"] = {
        "custom_fences": [{"name": "mermaid", "class": "mermaid", "format": fence_code_format}]
    }
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the files next to docs/."""
    for path in BESIDE:
        files.append(File.generated(config, path, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Converts links between files of the repository to links between pages of the site."""
    return with_links_of_site(markdown, page.file.src_uri)


def with_links_of_site(markdown: str, page: str) -> str:
    """Returns the text of a page with adapted links.

    Args:
        markdown: the text, with links relative to its file in the repository.
        page: the path of the page on the site.
    """
    here = posixpath.dirname(page if page in BESIDE else f"docs/{page}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2])).removeprefix("docs/")
        return f"{link[1]}{posixpath.relpath(target, posixpath.dirname(page) or '.')}{link[3] or ''}{link[4]}"

    return _LINK.sub(moved, markdown)
