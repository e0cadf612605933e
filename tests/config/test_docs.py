"""The reference pages say what the declarations say."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("import runpy; pages = runpy.run_path('docs/generate.py')['PAGES'];"
        "[print(name, page(), sep='\\n') for name, page in pages.items()]")


def test_pages_are_current() -> None:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "XDG_"))}
    result = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, text=True, capture_output=True,
                            check=True, env=keep | {"PYTHONPATH": str(ROOT)})
    for name in ("flags.md", "environment.md"):
        page = (ROOT / "docs" / name).read_text()
        assert page in result.stdout, f"docs/{name} is out of date: run python -m docs.generate"
