"""The rules of the house that a machine can read."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

import frugalvit
from frugalvit.cli import app

SOURCE = Path(frugalvit.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

PLAIN = {
    "handles",
    "errors",
    "migrate",
    "offline",
    "slots",
    "spec",
    "assign",
    "outline",
    "stopping",
}  # the standard library and each other
ALLOWED = {
    "nn": PLAIN,
    "data": PLAIN,
    "zoo": PLAIN | {"nn"},
    "weights": PLAIN | {"nn"},
    "measure": PLAIN | {"nn"},
    "explain": PLAIN | {"nn", "measure", "weights"},
    "deploy": PLAIN | {"nn", "measure", "weights", "data"},
    "objective": PLAIN | {"nn", "data"},
    "report": PLAIN,
    "training": PLAIN | {"nn", "data", "objective", "weights", "measure"},
    "recipes": PLAIN | {"nn", "zoo", "data", "objective", "training"},
    "studies": PLAIN
    | {"nn", "data", "measure", "explain", "deploy", "report", "training", "recipes", "beginning", "run", "seeds"},
    "advise": PLAIN | {"nn", "data", "measure", "weights", "training", "recipes"},
}
EVERYTHING = (
    "cli",
    "run",
    "seeds",
    "beginning",
    "first_weights",
    "cautions",
    "teaching",
    "validating",
    "judging",
    "__init__",
    "__main__",
)
FLAGS = {"--help", "--version", "--json", "--with", "--out", "--init", "--origin", "--classes", "--resample", "--grid"}
FLAGS |= {"--data", "--resume", "--extend", "--device", "--workers", "--log", "--quiet", "--split", "--top", "--dataset"}
FLAGS |= {"--batch", "--steps", "--hours", "--write", "--seeds"}
FLAGS |= {"--teacher", "--student", "--way", "--least", "--head"}
FLAGS |= {"--packed", "--threads", "--half", "--pictures", "--all"}
BANNED_FILES = {"utils", "helpers", "common", "misc", "base", "factory", "registry", "manager"}


def unit(path: Path) -> str:
    """The folder or the file at the top of the package."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" if node.module == "frugalvit" else str(node.module) for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_the_right_way(path: Path) -> None:
    own = unit(path)
    inner = {name.split(".")[1] for name in imports(path) if name.startswith("frugalvit.")} - {own}
    if own in EVERYTHING:
        return
    assert inner <= ALLOWED.get(own, PLAIN), f"{own} must not import {inner - ALLOWED.get(own, PLAIN)}"


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_specs_import_the_standard_library_only(name: str) -> None:
    outside = {one.split(".")[0] for one in imports(SOURCE / f"{name}.py")} - {"frugalvit"}
    assert outside <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", ["frugalvit", "frugalvit.spec", "frugalvit.outline", "frugalvit.cli", "frugalvit.errors"])
def test_importing_the_package_stays_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_resolve_and_are_documented() -> None:
    assert 10 <= len(frugalvit.__all__) <= 25
    for name in frugalvit.__all__:
        assert inspect.getdoc(getattr(frugalvit, name)), name
    assert set(frugalvit.__all__) == set(dir(frugalvit))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = frugalvit.nothing


def test_timm_and_the_hub_are_never_needed_to_import_anything() -> None:
    for file in FILES:
        if file.name == "fetch.py":
            continue
        assert not {"timm", "transformers", "huggingface_hub"} & {name.split(".")[0] for name in imports(file)}, file


def test_no_file_is_called_by_a_name_that_says_nothing() -> None:
    assert not [file for file in FILES if file.stem in BANNED_FILES]


def test_no_function_takes_a_tunnel_of_keywords_or_a_boolean_that_selects_behavior() -> None:
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            allowed = node.name == "attention_flops"  # torch's counter hands it keywords
            assert node.args.kwarg is None or allowed, f"{file.name}: {node.name} takes **{node.args.kwarg}"
            if "cli" in file.parts or node.name in ("train", "train_seeds"):  # resume and extend are what their users call them
                continue
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            assert not [one for one in defaults if isinstance(one, ast.Constant) and isinstance(one.value, bool)], node.name


def test_every_file_and_public_class_says_what_it_is() -> None:
    for info in pkgutil.walk_packages([str(SOURCE)], "frugalvit."):
        if info.name == "frugalvit.__main__":
            continue
        module = importlib.import_module(info.name)
        assert module.__doc__, info.name
        for name, value in vars(module).items():
            is_spec = inspect.isclass(value) and value.__module__ == info.name and hasattr(value, "__dataclass_fields__")
            assert not is_spec or (value.__doc__ and not value.__doc__.startswith(f"{name}(")), f"{info.name}.{name}"


def test_specs_are_frozen() -> None:
    for info in pkgutil.walk_packages([str(SOURCE)], "frugalvit."):
        if info.name == "frugalvit.__main__":
            continue
        for value in vars(importlib.import_module(info.name)).values():
            if inspect.isclass(value) and hasattr(value, "__dataclass_params__"):
                assert value.__dataclass_params__.frozen, value


def test_the_list_of_flags_is_pinned() -> None:
    command = typer.main.get_command(app)
    found = {
        option for verb in command.commands.values() for one in verb.params for option in one.opts if option.startswith("--")
    }
    found |= {option for one in command.params for option in one.opts}
    assert found | {"--help"} == FLAGS


def test_the_core_dependencies_are_few() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    names = {one.split(">")[0] for one in project["dependencies"]}
    assert names == {"torch", "torchvision", "numpy", "pillow", "safetensors", "rich", "scikit-learn", "scipy", "typer"}
    imported = {name.partition(".")[0] for file in FILES for name in imports(file)}
    modules = {"pillow": "PIL", "scikit-learn": "sklearn"}
    assert all(modules.get(name, name) in imported for name in names)


def test_nothing_loads_torchs_compiler_before_it_is_needed() -> None:
    """It takes as long as torch itself, and every command would wait for it."""
    code = "import sys, frugalvit.cli.training, frugalvit.run; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
