"""What mkdocs does besides: it adds the reference and the examples, and leaves out pages that are not written."""

import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation without what does not exist, and with every page of the reference's folders."""
    docs = Path(config["docs_dir"])
    config["nav"] = _kept(config["nav"], docs)
    named = set(re.findall(r"[\w/-]+\.md", str(config["nav"])))
    if new := [path.name for path in sorted(docs.glob("*.md")) if path.name not in named]:
        config["nav"].append({"More": new})
    return config


def _kept(entries: list[dict[str, Any]], docs: Path) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        ((title, what),) = entry.items()
        if isinstance(what, list):
            found.append({title: _kept(what, docs)})
        elif what.endswith("/"):
            found.append({title: [f"{what}{name}.md" for name in reference.named()[what]]})
        elif (docs / what).exists() or what.startswith("reference/"):
            found.append(entry)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The reference, and a page for every example that a page links to."""
    for path, text in {**reference.pages(), **_examples()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def _examples() -> dict[str, str]:
    found = {}
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in (".py", ".toml") and "__pycache__" not in path.parts:
            name, kind = path.relative_to(ROOT).as_posix(), path.suffix[1:].replace("py", "python")
            found[f"{name}.md"] = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n```{kind}\n{path.read_text()}```\n"
    for folder in {path.rsplit("/", 1)[0] for path in found}:
        inside = sorted(path for path in found if path.startswith(f"{folder}/"))
        links = "\n".join(f"- [{path[len(folder) + 1 : -3]}]({path[len(folder) + 1 :]})" for path in inside)
        found[f"{folder}/index.md"] = f"# {folder}\n\n{links}\n"
    return found


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Links to examples, which lie outside of this folder, go to their pages."""
    up = "../" * page.file.src_uri.count("/")

    def moved(link: re.Match[str]) -> str:
        target = link[1].rstrip("/")
        return f"]({up}{target}.md)" if Path(target).suffix else f"]({up}{target}/index.md)"

    return re.sub(r"\]\((?:\.\./)+(examples/[^)#]+)\)", moved, markdown)
