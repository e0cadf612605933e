"""The layer rules: who may import whom, and what the base install must never contain."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "vllm"

# Layer of a module = the longest prefix that matches. Lower numbers never import higher ones.
LAYERS = {
    "vllm": 8,
    "vllm.envs": 0,
    "vllm.logger": 0,
    "vllm.exceptions": 0,
    "vllm.version": 0,
    "vllm.utils": 0,
    "vllm.platforms": 1,
    "vllm.plugins": 1,
    "vllm.transformers_utils": 1,
    "vllm.config": 2,
    "vllm.inputs": 2,
    "vllm.outputs": 2,
    "vllm.sampling_params": 2,
    "vllm.v1.request": 2,
    "vllm.v1.messages": 2,
    "vllm.v1.serial": 2,
    "vllm._native": 3,
    "vllm.ir": 3,
    "vllm.kernels": 3,
    "vllm.model_executor": 4,
    "vllm.attention": 4,
    "vllm.v1.core": 5,
    "vllm.v1.metrics": 5,
    "vllm.v1.sample": 5,
    "vllm.v1.worker": 5,
    "vllm.v1.executor": 6,
    "vllm.v1.engine": 6,
    "vllm.engine": 6,
    "vllm.entrypoints": 8,
    "vllm.benchmarks": 8,
}

# Inside layers 5 and 6: what decides never sees what runs, and the engine reaches the
# worker only through the executor (by dotted name, so not by an import statement).
FORBIDDEN = [
    ("vllm.v1.core", ("vllm.model_executor", "vllm.kernels", "vllm.v1.worker", "vllm.v1.sample")),
    ("vllm.v1.metrics", ("vllm.model_executor", "vllm.kernels", "vllm.v1.worker")),
    ("vllm.v1.worker", ("vllm.v1.core",)),
    ("vllm.v1.sample", ("vllm.v1.core",)),
    ("vllm.v1.engine", ("vllm.model_executor", "vllm.kernels", "vllm.attention", "vllm.ir")),
    ("vllm.v1.executor", ("vllm.v1.worker", "vllm.model_executor", "vllm.kernels")),
    ("vllm.config", ("numpy",)),
    ("vllm.v1.core", ("numpy",)),
]

NEVER = {"torch", "transformers", "pickle", "cloudpickle", "dill", "marshal"}
FILES = sorted(ROOT.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> list[tuple[str, int]]:
    """Every import outside `if TYPE_CHECKING`, as (module, line)."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        else:
            found += imports(node)
    return found


def layer(module: str) -> int:
    return max((len(name), number) for name, number in LAYERS.items()
               if module == name or module.startswith(name + "."))[1]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    name, tree = module_name(path), ast.parse(path.read_text())
    wrong = []
    for target, line in imports(tree):
        if target.split(".")[0] in NEVER:
            wrong.append(f"{path}:{line} imports {target}")
        if target.startswith("vllm.version") or target == "vllm.__version__":
            continue
        if target.startswith("vllm") and name != "vllm" and layer(target) > layer(name):
            wrong.append(f"{path}:{line} {name} (layer {layer(name)}) imports {target} "
                         f"(layer {layer(target)})")
        for source, banned in FORBIDDEN:
            if name.startswith(source) and target.startswith(banned):
                wrong.append(f"{path}:{line} {name} must not import {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_no_code_from_data(path: Path) -> None:
    """No eval, exec, pickle or unsafe YAML: data never becomes code."""
    calls = [
        f"{path}:{node.lineno} {ast.unparse(node.func)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"eval", "exec", "yaml.load", "yaml.unsafe_load"}
    ]
    assert not calls


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_environment_is_read_in_one_place(path: Path) -> None:
    if module_name(path) == "vllm.envs":
        return
    reads = [
        f"{path}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in {"os.environ", "os.getenv"}
    ]
    assert not reads, "read the environment in vllm/envs.py: " + ", ".join(reads)
