# Everything a fresh machine needs: `make standalone` runs the broker, `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
DOCS_STAMP := $(VENV)/.set-up-docs
MERMAID := 11.12.0
BOOKKEEPER_JARS := $(or $(MAGNETAR_BOOKKEEPER_JARS),$(HOME)/.cache/magnetar-tests/bookkeeper-4.17.3)
SEEDS ?= 20000
SECONDS_PER_LOAD ?= 10
# Images of Python set it. Without bytecode each process that a test starts compiles 440 modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup standalone test test-quick check bytecode docs bookkeeper-jars test-apache-bookkeeper audit bench bench-admin bench-compare bench-cluster simulate simulate-balancer test-failures chaos nightly fuzz fuzz-login interop-clients interop-cluster interop-compaction interop-transactions interop-flink chart-renderings test-chart test-chart-live test-console console-pictures format clean

help:  ## this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: $(STAMP)  ## environment in .venv (made anew when the pins change)

$(STAMP): pyproject.toml constraints.txt broker/protocol/send_scan.pyx bookkeeper/storage/durable_writes.pyx
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Magnetar needs Python 3.11 or newer")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	@command -v java >/dev/null || echo "note: no java found; the ZooKeeper and Spark parts need Java 17 or newer"
	@touch $(STAMP)

standalone: $(STAMP)  ## one process: binary protocol on 6650, HTTP on 8080, data in data/
	$(BIN)/magnetar standalone --data data --port 6650 --web-port 8080 --bind 127.0.0.1

# Six workers for two cores: half of the tests' time is waiting for processes. Order and what
# stays together: tests/conftest.py.
test: $(STAMP)  ## all tests that CI runs
	$(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder --durations=20

test-quick: $(STAMP)  ## unit tests of what differs from main [SINCE=commit]
	$(BIN)/python -m pytest -x -n 2 $$($(BIN)/python scripts/changed_tests.py $(or $(SINCE),main))

check: $(STAMP)  ## format, lint, types, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	PYTHON=$(BIN)/python scripts/generate_protobuf --check

# Beside mypy, which takes one core for a minute; else six workers would do it at the same time.
bytecode: $(STAMP)
	@-$(BIN)/python -m pytest --collect-only -q -n 0 >/dev/null

docs: $(STAMP) $(DOCS_STAMP) build/docs/scripts/mermaid.min.js  ## the site, in build/docs/html; warnings are errors
	$(BIN)/python scripts/admin_commands.py
	$(BIN)/python scripts/reference_pages.py
	MAGNETAR_DOCS_SCRIPTS=$(CURDIR)/build/docs/scripts $(BIN)/python -m sphinx -q -W --keep-going -j auto \
		-d build/docs/doctrees docs build/docs/html

$(DOCS_STAMP): pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $(DOCS_STAMP)

# Draws the pictures in the reader's browser. Its package is for npm; pip has no such one.
build/docs/scripts/mermaid.min.js:
	@command -v npm >/dev/null || { echo "make docs needs npm, for mermaid $(MERMAID)"; exit 1; }
	mkdir -p build/docs/scripts && cd build/docs && npm pack --silent mermaid@$(MERMAID) >/dev/null && \
		tar -xzf mermaid-$(MERMAID).tgz package/dist/mermaid.min.js && rm mermaid-$(MERMAID).tgz && \
		mv package/dist/mermaid.min.js scripts/ && rm -r package

bookkeeper-jars: $(BOOKKEEPER_JARS)/.complete  ## Apache BookKeeper's bookies for tests, by Maven into a cache

$(BOOKKEEPER_JARS)/.complete: tests/apache/pom.xml
	mvn -q -B -f tests/apache/pom.xml dependency:copy-dependencies -DoutputDirectory=$(BOOKKEEPER_JARS)
	@touch $@

# Which ones are left out, and why: tests/ledger_store.py.
ON_APACHE := tests/integration/test_apache_bookkeeper.py tests/integration/test_cluster_chaos.py tests/integration/test_cluster_failover.py tests/integration/test_cluster_http.py tests/integration/test_cluster_http_access.py tests/integration/test_cluster_placement.py tests/integration/test_cluster_shedding.py tests/integration/test_cluster_tls.py tests/integration/test_cluster_transactions.py tests/integration/test_console_brokers.py tests/integration/test_console_cluster.py tests/integration/test_migrate_in_place.py tests/integration/test_migrate_pulsar.py tests/integration/test_pulsar_entries.py tests/pipeline/test_cluster_pipeline.py

test-apache-bookkeeper: $(STAMP) bookkeeper-jars  ## tests of clusters with Apache's bookies instead of ours [ROUNDS=12] [ONLY=files]
	MAGNETAR_LEDGER_STORE=apache MAGNETAR_CHAOS_ROUNDS=$(or $(ROUNDS),12) $(if $(SEED),MAGNETAR_CHAOS_SEED=$(SEED)) \
		$(BIN)/python -m pytest -n 2 --dist loadfile $(or $(ONLY),$(ON_APACHE))

audit:  ## make audit [SERVICE=osv | DATABASE=DIR]: dependencies with known advisories (network, or a copy; not in CI)
ifdef DATABASE
audit: $(STAMP)
	$(BIN)/python scripts/audit_offline.py $(DATABASE)
else
audit:
	@[ -x .venv-audit/bin/pip-audit ] || { $(PYTHON) -m venv .venv-audit && \
		.venv-audit/bin/python -m pip install -q --disable-pip-version-check pip-audit; }
	# Strict: a package that nobody could look up is a failure, not a good result.
	.venv-audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip --strict -s $(or $(SERVICE),pypi)
endif

format: $(STAMP)  ## rewrite sources in our format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-admin: $(STAMP)  ## topic statistics, lists of 10,000 topics [SERVICE_URL=pulsar://... ADMIN_URL=http://...]
	$(BIN)/python -m benchmarks.micro.http_admin $(SERVICE_URL) $(ADMIN_URL)

bench-compare: $(STAMP)  ## A=COMMIT B=COMMIT [PAIRS=10] [SECONDS_PER_LOAD=3] [OUT=file.md] [BOOKIES=apache]: two commits in turn
	$(BIN)/python -m benchmarks.compare_commits $(A) $(B) --pairs $(or $(PAIRS),10) --bookies $(or $(BOOKIES),own) \
		--seconds $(if $(filter file,$(origin SECONDS_PER_LOAD)),3,$(SECONDS_PER_LOAD)) $(if $(OUT),--out $(OUT))

bench-cluster: $(STAMP)  ## three brokers and bookies by the yardstick: OUT=folder [PULSAR=pulsar.sh] [SECONDS_PER_LOAD=10]
	$(BIN)/python -m benchmarks.cluster_figures --seconds $(SECONDS_PER_LOAD) --out $(OUT) $(if $(PULSAR),--pulsar $(PULSAR))

bench: $(STAMP)  ## micro benchmarks and a short yardstick run, for us alone
	$(BIN)/python benchmarks/run.py --seconds $(SECONDS_PER_LOAD)

simulate: $(STAMP)  ## make simulate SEEDS=N [SEED=first]: seeds of the cluster on all cores, prints failing ones
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --first $(or $(SEED),0)
	MAGNETAR_SEEDS=$$(( $(SEEDS) < 2000 ? $(SEEDS) : 2000 )) MAGNETAR_SEED=$(or $(SEED),0) \
		$(BIN)/python -m pytest tests/simulation -n 2 --deselect tests/simulation/test_cluster.py \
		--ignore tests/simulation/test_planted_bugs.py

simulate-balancer: $(STAMP)  ## make simulate-balancer [SEED=N]: 1,000 brokers, each strategy; half an hour or more. Curves in benchmarks/
	$(BIN)/python -m tests.simulation.balancer.run benchmarks/load-balancing --seed $(or $(SEED),0)

test-failures: $(STAMP)  ## make test-failures [ONLY=text]: every operation on storage that fails at its k-th call, for every k
	MAGNETAR_FAILURES=all MAGNETAR_FAILURES_ONLY="$(ONLY)" \
		$(BIN)/python -m pytest tests/simulation/test_failing_operations.py -s

chaos: $(STAMP)  ## make chaos [ROUNDS=100] [SEED=N]: random kills in a cluster, and of --processes 3; by their histories nothing is lost
	MAGNETAR_NIGHTLY=1 MAGNETAR_CHAOS_ROUNDS=$(or $(ROUNDS),100) MAGNETAR_CHAOS_SEED=$(or $(SEED),$$(date +%s)) \
		$(BIN)/python -m pytest tests/integration/test_cluster_chaos.py tests/integration/test_processes_chaos.py -s

# Each part runs, whatever came out of the one before. By another name, as `make -n` runs lines that
# have the usual one in them.
PART := $(MAKE)
# Tests that are smaller in CI (tests/nightly.py).
FULL_SIZE := tests/integration/test_apache_api.py tests/integration/test_apache_bookkeeper.py tests/integration/test_apache_bookkeeper_login.py tests/integration/test_apache_bookkeeper_repair.py tests/integration/test_apache_broker_faults.py tests/integration/test_apache_clients.py tests/integration/test_apache_faults.py tests/integration/test_apache_layout.py tests/integration/test_apache_rolling.py tests/integration/test_beside_other_packages.py tests/integration/test_broker_fuzz.py tests/integration/test_cluster_local.py tests/integration/test_kill_nine.py tests/integration/test_cluster_shedding.py tests/integration/test_cluster_transactions.py tests/integration/test_migrate_pulsar.py tests/integration/test_transactions_killed.py tests/integration/test_verify_transactions.py tests/pipeline/test_apache_digests.py tests/pipeline/test_cluster_pipeline.py tests/pipeline/test_sink_restarts.py tests/pipeline/test_jobs.py tests/simulation/test_cluster.py tests/simulation/test_managed_ledger_offload.py tests/simulation/test_managed_ledger_takeover.py tests/unit/broker/schema/test_bounded_values.py tests/unit/broker/topic/test_loaded_topics.py tests/unit/managed_ledger/test_cursor_packed_bitmaps.py

nightly: $(STAMP)  ## make nightly [SEED=N] [ROUNDS=60] [EXAMPLES=300]: all planted bugs, many seeds, failing storage, chaos, fuzz; hours
	failed=; seed=$(or $(SEED),$$(date +%s)); \
	$(BIN)/python -m tests.simulation.rotation --all || failed="$$failed planted-bugs"; \
	MAGNETAR_NIGHTLY=1 $(BIN)/python -m pytest $(FULL_SIZE) || failed="$$failed full-size"; \
	for part in "simulate SEEDS=$(SEEDS)" test-failures test-apache-bookkeeper "chaos ROUNDS=$(or $(ROUNDS),60)" \
			"fuzz EXAMPLES=$(or $(EXAMPLES),300)" "fuzz-login ROUNDS=200"; do \
		$(PART) $$part SEED=$$seed || failed="$$failed $${part%% *}"; \
	done; \
	echo "seed $$seed; failed:$${failed:- nothing}"; [ -z "$$failed" ]

fuzz: $(STAMP)  ## make fuzz [EXAMPLES=N] [SEED=N] [ONLY=part of a path]: random HTTP requests, heavy inputs everywhere
	MAGNETAR_NIGHTLY=1 MAGNETAR_FUZZ_EXAMPLES=$(or $(EXAMPLES),100) MAGNETAR_FUZZ_SEED=$(or $(SEED),$$(date +%s)) \
		MAGNETAR_FUZZ_ONLY=$(ONLY) $(BIN)/python -m pytest -s \
		tests/integration/test_http_fuzz.py $(if $(ONLY),,tests/integration/test_heavy_inputs.py)

fuzz-login: $(STAMP)  ## make fuzz-login [ROUNDS=N] [SEED=first]: random first words at every port
	MAGNETAR_LOGIN_SEEDS=$(or $(ROUNDS),50) MAGNETAR_LOGIN_SEED=$(or $(SEED),$$(date +%s)) \
		$(BIN)/python -m pytest tests/integration/test_broker_unauthenticated.py \
		tests/integration/test_broker_unauthenticated_tls.py tests/integration/test_bookkeeper_unauthenticated.py -v

interop-clients: $(STAMP)  ## the official Go and Java clients (ONLY=go, java or node); needs Go, Java 17, Maven
	ONLY=$(ONLY) scripts/interop_clients

interop-cluster: $(STAMP)  ## Go, Java and Node clients (ONLY=go ...) in a cluster whose bundles move and whose owner is killed
	$(BIN)/python -m tests.interop.moving_cluster $(if $(ONLY),--only $(ONLY))

interop-compaction: $(STAMP)  ## compacted topics that Go, Java, Node and C++ clients write and read at random [SERVICE_URL= ADMIN_URL= of a server] [SEEDS=20] [SEED=first] [ONLY="go java"]
	$(BIN)/python -m tests.interop.compacted_by_clients --seeds $(or $(SEEDS),20) --first $(or $(SEED),0) $(if $(ONLY),--only $(ONLY)) \
		$(if $(SERVICE_URL),--service-url $(SERVICE_URL) --admin-url $(ADMIN_URL))

interop-transactions: $(STAMP)  ## random histories of transactions by the Go client [SERVICE_URL= ADMIN_URL= of a server] [SEEDS=10] [SEED=first]
	$(BIN)/python -m tests.interop.transactions_by_clients --seeds $(or $(SEEDS),10) --first $(or $(SEED),0) \
		$(if $(SERVICE_URL),--service-url $(SERVICE_URL) --admin-url $(ADMIN_URL))

interop-flink: $(STAMP)  ## Flink's exactly-once sink while jobs, topics and the broker fail [SERVICE_URL= ADMIN_URL= of a server] [ROUNDS=2]
	$(BIN)/python -m tests.interop.flink_copies --rounds $(or $(ROUNDS),2) \
		$(if $(SERVICE_URL),--service-url $(SERVICE_URL) --admin-url $(ADMIN_URL))

# axe looks for what people with other eyes, hands or ears can't use. Its package is for npm.
AXE := 4.14.1
build/console/axe.min.js:
	@command -v npm >/dev/null || { echo "make test-console needs npm, for axe-core $(AXE)"; exit 1; }
	mkdir -p build/console && cd build/console && npm pack --silent axe-core@$(AXE) >/dev/null && \
		tar -xzf axe-core-$(AXE).tgz package/axe.min.js && mv package/axe.min.js . && rm -r package *.tgz

test-console: $(STAMP) build/console/axe.min.js  ## the console in Chromium: all pages with axe, faults, a cluster; pictures in build/console
	MAGNETAR_AXE=build/console/axe.min.js MAGNETAR_PICTURES=build/console \
		$(BIN)/python -m pytest tests/integration/test_console_*.py -v

console-pictures: $(STAMP)  ## the pictures of the docs anew, after a change of how pages look
	MAGNETAR_DOCS_PICTURES=docs/_static/console $(BIN)/python -m pytest tests/integration/test_console_pictures.py

chart-renderings: $(STAMP)  ## tests/charts/renderings anew, after a change of charts/magnetar; needs helm 3 [HELM=path]
	$(BIN)/python -m tests.charts.renderings $(or $(HELM),helm)

test-chart: $(STAMP)  ## the chart and a real control plane: KUBE=kube.sh (docs/internals/chart-tests.md), helm 3 [HELM=path]
	MAGNETAR_KUBE=$(KUBE) MAGNETAR_HELM=$(or $(HELM),helm) $(BIN)/python -m pytest tests/charts -v

# Network, mounts and processes of its own: whatever the run leaves, the kernel clears away.
test-chart-live: $(STAMP)  ## the chart's pods as real processes under load, as root: KUBE=kube.sh, helm 3 [HELM=path] [ONLY=words]
	MAGNETAR_LIVE=1 MAGNETAR_KUBE=$(KUBE) MAGNETAR_HELM=$(or $(HELM),helm) \
		$(if $(filter 0,$(shell id -u)),unshare --mount --net --pid --fork --kill-child --mount-proc) \
		$(BIN)/python -m pytest tests/charts/live -v -s $(if $(ONLY),-k "$(ONLY)")

clean:  ## remove the environment and caches, never data/
	rm -rf $(VENV) .venv-audit .mypy_cache .ruff_cache .pytest_cache build *.egg-info
