# Every target creates the virtual environment that it needs. Start with `make demo` or `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PORT ?= 8000
# tests also wait for disks and other processes, so that two do not fill two cores
WORKERS ?= 3
CLIENTS = openai langchain-openai llama-index-embeddings-openai litellm haystack-ai requests
CRASH = $(addprefix tests/store/test_, crash.py power_loss.py damage.py disk_full.py state_machine.py \
	readers_during_compaction.py)

.PHONY: demo test clients slow check generate docs mutate gpu crash soak bench lines clean

demo: $(VENV)/.demo  ## index a gallery, then serve the web page on http://127.0.0.1:8000
	$(BIN)/nnclr demo --port $(PORT) $(ARGS)

test: $(VENV)/.dev  ## run the default tests; WORKERS=0 runs them in one process
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --durations=20 $(ARGS)

# One package that is unavailable does not keep the others away.
clients: $(VENV)/.dev  ## install the clients of other projects that `NNCLR_CLIENTS=.venv/clients make test` runs
	$(PYTHON) -m venv $(VENV)/clients
	@for package in $(CLIENTS); do \
		$(BIN)/uv pip install --quiet --python $(VENV)/clients/bin/python $$package \
		|| $(VENV)/clients/bin/python -m pip install --quiet $$package || echo "$$package is not installed"; done
	@npm install --silent --prefix $(VENV)/clients openai || echo "openai for JavaScript is not installed"

slow: $(VENV)/.dev  ## run the slow tests, mostly in a browser; takes more than 20 minutes
	$(BIN)/python -m pytest -m slow --numprocesses $(WORKERS) --dist loadfile --durations=20 $(ARGS)

check: $(VENV)/.dev  ## check style, types and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python .ci/lint_prose.py
	$(BIN)/python .ci/generate_async_types.py --check
	@if npx --yes --package typescript@5 tsc --version >/dev/null 2>&1; then \
		npx --yes openapi-typescript@7 docs/openapi.json --output app/openapi.d.ts >/dev/null && \
		npx --yes --package typescript@5 tsc --project app/jsconfig.json; \
	else echo "without TypeScript, the types of the web app are not checked"; fi
	@! grep -nP '^.{121,}' app/web/*.js app/web/*.css app/web/*.html || { echo "at most 120 columns"; exit 1; }
	@if npx --yes prettier@3.10.1 --version >/dev/null 2>&1; then \
		npx --yes prettier@3.10.1 --config app/.prettierrc.json --check app/web/*.js tests/app/*.mjs; \
	else echo "without Prettier, the format of the web app is not checked"; fi
	@if node --version >/dev/null 2>&1; then node --test tests/app/; \
	else echo "without node, the unit tests of the web app are not run"; fi

generate: $(VENV)/.dev  ## write the types of AsyncClient from the methods of Client
	$(BIN)/python .ci/generate_async_types.py

docs: $(VENV)/.dev  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "The documentation is in site/index.html."

mutate: $(VENV)/.dev  ## change the method and the training program in one place each; count what tests notice
	$(BIN)/python .ci/mutate.py $(MODULES) $(ARGS)

gpu: $(VENV)/.dev  ## test on a CUDA device, then benchmark it into OUT; see docs/gpu.md
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)
	$(BIN)/python benchmarks/pretrain_gpu.py --steps 8 --out $(or $(OUT),gpu-results)

crash: $(VENV)/.dev  ## run the long crash tests for 40 minutes: kill -9, power loss, damaged files, full disks
	NNCLR_CRASH_SECONDS=600 $(BIN)/python -m pytest -m 'slow or not slow' $(CRASH) $(ARGS)

soak: $(VENV)/.dev  ## load a server for MINUTES with damaged images and canceled requests
	NNCLR_SOAK_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest -m slow -k memory -rP tests/serving/test_soak.py $(ARGS)

bench: $(VENV)/.dev  ## run the main benchmarks; each prints its command and its baseline
	$(BIN)/python benchmarks/folder.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/startup.py

lines:  ## print the lines of Python by room, and the longest files
	@git ls-files '*.py' | xargs wc -l | awk '$$2 != "total" { n = split($$2, part, "/"); \
		room[n > 2 ? part[1] "/" part[2] : part[1]] += $$1 } END { for (name in room) print room[name], name }' | sort -nr
	@git ls-files '*.py' | xargs wc -l | sort -nr | sed -n 2,21p

# uv resolves in seconds, and picks the CPU build of torch where there is no NVIDIA GPU. Where it cannot be installed, or
# pytorch.org cannot be reached, pip installs the build of PyPI. A second call of a target installs nothing.
define install
	$(PYTHON) -m venv $(VENV)
	@echo "Installing nnclr_hub[$(1)] into $(VENV); the first time takes a few minutes."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet uv || true
	@$(BIN)/uv pip install --python $(BIN)/python --torch-backend=auto -e '.[$(1)]' \
		|| { echo "Installing the build of torch on PyPI instead, which takes 6 GB with CUDA."; \
			$(BIN)/uv pip install --python $(BIN)/python -e '.[$(1)]'; } \
		|| $(BIN)/python -m pip install -e '.[$(1)]'
endef

$(VENV)/.demo: pyproject.toml
	$(call install,demo)
	touch $@

$(VENV)/.dev: pyproject.toml
	$(call install,dev)
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist site
