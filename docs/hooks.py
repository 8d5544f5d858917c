"""What `mkdocs build` adds to the pages of this folder: they are made from the code at every build.

A page per algorithm, and the README, CONTRIBUTING, CHANGELOG and the READMEs of `results/`, each of which
stands once.
"""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent)]

import algorithm_pages  # noqa: E402

from corerl import algos  # noqa: E402

INCLUDED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
}
REPRODUCED = ROOT / "results" / "reproduced"
OTHERS = ("bench", "datasets", "published")  # folders of results/ whose pages stand beside those
LISTED = {"Algorithms": "algorithms", "Results": "results"}


def on_config(config: Any) -> Any:
    """Adds the made pages to the navigation, and pages that it does not name at its end."""
    pages = {"Algorithms": [f"algorithms/{name}.md" for name in algos.names()]}
    pages["Results"] = [f"results/{folder.name}/index.md" for folder in reproduced()]
    pages["Results"] += list(others())
    for item in config.nav:
        for title in LISTED.keys() & item.keys():
            item[title] = [item[title], *pages[title]]
    named = str(config.nav)
    guides = [page.name for page in sorted(Path(config.docs_dir).glob("*.md"))]
    more = [name for name in guides if f"'{name}'" not in named]
    if more:
        config.nav.append({"More": more})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the made pages."""
    pages = {
        page: linked((ROOT / source).read_text(encoding="utf-8"))
        for page, source in INCLUDED.items()
    }
    pages |= {f"algorithms/{name}.md": algorithm_pages.page(name) for name in algos.names()}
    pages["algorithms/index.md"] = algorithm_pages.index()
    pages["results/index.md"] = results()
    for folder in reproduced():
        pages[f"results/{folder.name}/index.md"] = (folder / "README.md").read_text(
            encoding="utf-8"
        )
        for picture in folder.glob("*.png"):
            name = f"results/{folder.name}/{picture.name}"
            files.append(File.generated(config, name, content=picture.read_bytes()))
    pages |= {name: file.read_text(encoding="utf-8") for name, file in others().items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leads links to a page of `results/`, and to CONTRIBUTING, to its page here."""
    markdown = markdown.replace("](../CONTRIBUTING.md", "](contributing.md")
    markdown = re.sub(
        r"\]\(\.\./results/(?:reproduced/)?(\w+/(?!index)\w+\.md)", r"](results/\1", markdown
    )
    markdown = re.sub(r"(\]\(results/\w+)/README\.md", r"\1/index.md", markdown)
    # Between pages of results/, whose folders are one level on the site.
    return re.sub(r"\]\((?:\.\./)+(?:reproduced/)?(\w+)/README\.md", r"](../\1/index.md", markdown)


def linked(text: str) -> str:
    """A file of the repository's root with its links as they are from the site."""
    text = text.replace("](docs/", "](").replace("](CONTRIBUTING.md", "](contributing.md")
    text = text.replace("](CHANGELOG.md", "](changes.md")
    text = text.replace("](results/README.md", "](results/index.md")
    text = re.sub(r"\]\(algos/(\w+)\.py", r"](algorithms/\1.md", text)
    text = re.sub(r"\]\(results/reproduced/(\w+)/", r"](results/\1/", text)
    return re.sub(r"\]\(results/(\w+)/README\.md", r"](results/\1/index.md", text)


def reproduced() -> list[Path]:
    return sorted(file.parent for file in REPRODUCED.glob("*/README.md"))


def others() -> dict[str, Path]:
    """Returns {page: file} of the other pages below `results/`."""
    return {
        f"results/{folder}/{file.name.replace('README', 'index')}": file
        for folder in OTHERS
        for file in sorted((ROOT / "results" / folder).glob("*.md"))
    }


def results() -> str:
    """The map of what was run with this code, with its links as they are from the site."""
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?:reproduced/)?(\w+)/README\.md", r"](\1/index.md", text)
