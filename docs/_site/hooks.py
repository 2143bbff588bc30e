"""What mkdocs cannot know: two documents that lie outside ``docs/``, and links to them.

The documents are written for readers of the repository, so ``../README.md`` is a link that works
there. On the site they are pages of their own. Anything else outside is code, and named only.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "readme.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for source, page in OUTSIDE.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    own = next(
        (source for source, name in OUTSIDE.items() if name == page.file.src_uri),
        f"docs/{page.file.src_uri}",
    )

    def replace(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if not target:
            return match[0]
        path = (ROOT / own).parent.joinpath(target).resolve().relative_to(ROOT).as_posix()
        if path in OUTSIDE:
            wanted = OUTSIDE[path]
        elif path.startswith("docs/") and (ROOT / path).suffix in (".md", ".svg"):
            wanted = path.removeprefix("docs/")
        else:
            return text  # code, which is not part of the site
        up = "../" * page.file.src_uri.count("/")
        return f"[{text}]({up}{wanted}{anchor})"

    return _LINK.sub(replace, markdown)
