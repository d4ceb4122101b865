# Every target makes what it needs; `make demo` and `make test` are all a fresh machine has to know.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PORT ?= 8000
WORKERS ?= 2
CRASH = $(addprefix tests/store/test_, crash.py power_loss.py file_faults.py disk_full.py sync_order.py state_machine.py \
	readers_during_compaction.py last_release.py)

.PHONY: demo test slow check gpu crash soak bench clean

demo: $(VENV)/.demo  ## index a gallery and serve the page on http://127.0.0.1:8000
	$(BIN)/nnclr demo --port $(PORT) $(ARGS)

test: $(VENV)/.dev  ## the default test suite; WORKERS=0 for one process
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --durations=20 $(ARGS)

slow: $(VENV)/.dev  ## what the default suite has no patience for, in a browser above all: over 20 minutes
	$(BIN)/python -m pytest -m slow --numprocesses $(WORKERS) --dist loadfile --durations=20 $(ARGS)

check: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

gpu: $(VENV)/.dev  ## five minutes of a CUDA device: its tests, then a short benchmark into OUT; see docs/gpu.md
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)
	$(BIN)/python benchmarks/pretrain_gpu.py --minutes 2 --steps 8 --turns 2 --workers 0 --out $(or $(OUT),gpu-results)

crash: $(VENV)/.dev  ## the long form of the crash suite, 40 minutes: kill -9, failpoints, power loss, damaged files, full disks
	NNCLR_CRASH_SECONDS=600 $(BIN)/python -m pytest -m 'slow or not slow' $(CRASH) $(ARGS)

soak: $(VENV)/.dev  ## ten minutes of saturation with damaged pictures and broken-off requests; MINUTES, PLOT
	$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),10) --plot $(or $(PLOT),soak.png) $(ARGS)

bench: $(VENV)/.dev  ## the benchmarks; each prints its own command and what it compares
	$(BIN)/python benchmarks/store.py --items 100000
	$(BIN)/python benchmarks/linear_probe.py
	$(BIN)/python benchmarks/queue_overhead.py

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing torch and the rest; this takes a few minutes the first time"
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing torch and the rest; this takes a few minutes the first time"
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist
