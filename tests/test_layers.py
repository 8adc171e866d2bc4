"""Dependencies point one way, and importing the package stays cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "edgespec"

BASE = {"conditions", "interfaces", "errors", "paths"}
ADAPTERS = {"target", "draft", "device", "hub", "kernels"}
TOP = {"cli", "server", "bench", "train", "testing", "compat"}

# What each part may import of the package, itself aside. Modules not named here (engine, chat, config, ...) compose:
# they may use everything below the top.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "conditions": set(),
    "interfaces": {"conditions"},
    "paths": {"errors"},
    "config": BASE,
    "core": {"conditions", "interfaces", "errors"},
    **{adapter: {"core", *BASE} for adapter in ADAPTERS},
}


def part_of(module: str) -> str:
    """`edgespec.core.round` belongs to `core`."""
    return module.split(".")[1] if "." in module else ""


def imported(path: Path) -> set[str]:
    """Parts of the package that a file imports anywhere, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names |= {f"edgespec.{alias.name}" for alias in node.names} if module == "edgespec" else {module}
    return {part_of(name) for name in names if name.startswith("edgespec.")}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.stem.startswith("__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    used = imported(path) - {part}
    if part in TOP:
        return
    forbidden = used - ALLOWED[part] if part in ALLOWED else used & TOP
    # The package itself holds only the version and lazy names.
    assert not forbidden - {"__version__"}, f"{path.name} must not import {sorted(forbidden)}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: path.name)
def test_core_has_no_clock_and_no_files(path: Path) -> None:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.split(".")[0])
    assert not modules & {"time", "os", "pathlib", "io", "socket", "subprocess", "threading", "random", "shutil"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_device_part_names_files_of_the_kernel(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[0] in {"device", "testing.py"}:
        return
    texts = [
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert not [text for text in texts if text.startswith(("/proc/", "/sys/"))]


def test_import_is_cheap() -> None:
    heavy = ["llama_cpp", "onnxruntime", "typer", "rich", "numpy", "requests", "gguf", "jinja2", "psutil"]
    code = f"import sys, edgespec; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist() -> None:
    import edgespec

    assert {name for name in edgespec.__all__ if getattr(edgespec, name) is None} == set()
    assert set(edgespec.__all__) <= set(dir(edgespec))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = edgespec.no_such_name


def test_core_install_needs_no_pydantic() -> None:
    """pydantic-core is a Rust build on phones: nothing a core install needs may pull it in."""
    seen: set[str] = set()
    todo = ["edgespec"]
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # left out here by a marker
        todo += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requires if "extra ==" not in line]
    assert "typer" in seen
    assert not {name for name in seen if name.startswith("pydantic")}
