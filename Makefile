# Everything a newcomer needs: Python 3.11 or newer with venv, make, git. `make` alone lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
PYTHON ?= python3
RUN := .venv/bin/python -m config.embedded
# One environment, two levels. A stamp names the lock it was built from, so a changed lock is installed again.
RUNTIME := .venv/.runtime-$(shell cksum < requirements.lock | cut -d ' ' -f 1)
DEV := .venv/.dev-$(shell cksum < requirements-dev.lock | cut -d ' ' -f 1)
# The database of a test run is thrown away: nothing is lost by not waiting for the disk.
THROW_AWAY := --pg-option fsync=off --pg-option synchronous_commit=off --pg-option full_page_writes=off

.PHONY: help demo run test faults check check-servers bench lock

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | sed 's/[$$][$$]/$$/g' | expand -t 22

demo: $(RUNTIME) ## set up, start everything, play a recorded agent run with faults, print the console's address
	@exec $(RUN) run --demo

run: $(RUNTIME) ## the service alone: data in $$COUNTERFOIL_DATA (var/), on $$PORT (8000)
	@exec $(RUN) run

test: $(DEV) ## every test, on servers of its own (ARGS="tests/ledger -k intent" for some)
	@exec $(RUN) exec $(THROW_AWAY) -- pytest $(ARGS)

faults: export COUNTERFOIL_FAULTS = long
faults: $(DEV) ## the long fault run: servers killed, frozen, cut off and emptied, real bounds waited out
	@exec $(RUN) exec $(THROW_AWAY) -- pytest tests/faults $(ARGS)

check: $(DEV) ## style, types, migrations, settings for production
	@$(MAKE) --keep-going check-style check-format check-types check-migrations check-deploy

.PHONY: check-style check-format check-types check-migrations check-deploy
check-style: $(DEV)
	.venv/bin/ruff check .
check-format: $(DEV)
	.venv/bin/ruff format --check .
check-types: $(DEV)
	.venv/bin/mypy
check-migrations: $(DEV)
	.venv/bin/python manage.py makemigrations --check --dry-run
check-deploy: $(DEV)
	COUNTERFOIL_BASE_URL=https://counterfoil.example.org .venv/bin/python manage.py check --deploy --fail-level WARNING

check-servers: $(DEV) ## migrate and test on Debian's own postgresql and redis-server
	@exec .venv/bin/python -m tests.servers.debian

bench: $(DEV) ## speed against the database's own limit, in the same run
	@exec $(RUN) exec --pg-option shared_preload_libraries=pg_stat_statements -- python -m tests.benchmarks $(ARGS)

LOCK := .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet
lock: $(DEV) ## write the three locks anew from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(LOCK) $(UPGRADE) pyproject.toml --output-file requirements.lock
	$(LOCK) $(UPGRADE) pyproject.toml --group dev --output-file requirements-dev.lock
	$(LOCK) $(UPGRADE) pyproject.toml --group hosts --output-file requirements-hosts.lock

$(RUNTIME): requirements.lock
	@$(call install,requirements.lock)

$(DEV): requirements-dev.lock
	@$(call install,requirements-dev.lock)

# --require-hashes: what is installed is what the lock names, byte by byte.
define install
set -e; \
.venv/bin/python -c "" 2>/dev/null || { \
  command -v $(PYTHON) >/dev/null || { \
    echo "make: $(PYTHON) is missing. On Debian: apt-get install python3 python3-venv. Or name one: make PYTHON=/path/to/python3"; exit 1; }; \
  $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
    echo "make: $(PYTHON) is `$(PYTHON) --version`; 3.11 or newer is needed. Name one: make PYTHON=/path/to/python3.11"; exit 1; }; \
  $(PYTHON) -c "import ensurepip, venv" 2>/dev/null || { \
    echo "make: $(PYTHON) has no venv. On Debian: apt-get install python3-venv"; exit 1; }; \
  echo "making .venv with `$(PYTHON) --version` ..."; rm -rf .venv; $(PYTHON) -m venv .venv; }; \
echo "installing $(1): `grep -c == $(1)` packages ..."; \
{ .venv/bin/python -m pip install --disable-pip-version-check --no-input --require-hashes --requirement $(1) 2>&1 || echo "pip failed"; } \
  | awk '/^Requirement already/ { have++; next } /^Collecting/ { print "  " $$2; next } /^ / { next } \
         /^Processing/ { sub(/.*\//, "", $$2); sub(/-[^-]*-[^-]*-[^-]*\.whl$$/, "", $$2); print "  " $$2; next } \
         /^(Looking in|Ignoring|WARNING: Location)/ { next } \
         /^Installing/ { print "  unpacking ..."; next } /^(Successfully|Downloading|Using cached)/ { next } \
         /^pip failed/ { failed = 1; next } { print "  " $$0 } \
         END { if (have) print "  " have " were there already"; exit failed }' \
  || { echo "make: the packages could not be installed (see above); make starts again where it stopped"; exit 1; }; \
.venv/bin/python -m pip check --disable-pip-version-check >/dev/null || { echo "make: the packages in .venv do not fit together: remove .venv and try again"; exit 1; }; \
touch $@
endef
