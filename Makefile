# Every command that a person or CI runs. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.SHELLFLAGS := -eu -c

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/longshore
export CARGO_TARGET_DIR ?= $(CACHE)/target
# A first build takes a sixth longer with it. CARGO_INCREMENTAL=1 is for who edits and builds again.
export CARGO_INCREMENTAL ?= 0
# Where the programs and tools of root are, whatever shell called us.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin

.PHONY: help build install uninstall deb tarball static static-test docs run test test-runtimes critest test-unit fuzz linearizability vm-test vm-machines e2e-node vm-bench lint style fmt bench bench-proxy bench-server bench-volumes bench-api bench-cluster bench-one-node layout bench-deployment bench-up bench-dns clean-host

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# Without optimisation, as the tests are built: that takes a third of the time.
PROFILE ?= dev
run: ## start a cluster of one node with a demo application; RUNTIME=docker, ONCE=1 checks it and leaves, PROFILE=release optimises
	@scripts/install-deps.sh $(if $(filter docker,$(RUNTIME)),docker,run)
	cargo build --profile $(PROFILE) --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-dns -p longshore-demo
	@exec "$$CARGO_TARGET_DIR/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/longshore-demo" $(if $(RUNTIME),--runtime="$(RUNTIME)") $(if $(filter-out 0,$(ONCE)),--once)

PREFIX ?= /usr/local
DESTDIR ?=
# The profile of what is installed.
INSTALL_PROFILE ?= release
PROGRAMS := longshore longshore-host longshore-apiserver longshore-controllers longshore-dns
# What `longshore version -o json` says. Not of other builds: each commit would compile everything again.
of_commit = $(if $(filter release,$(INSTALL_PROFILE)),LONGSHORE_COMMIT="$$(git describe --always --abbrev=40 --dirty --exclude='*' 2>/dev/null || true)")
build_installed = $(of_commit) cargo build --locked --profile $(INSTALL_PROFILE) --bins $(addprefix -p ,$(PROGRAMS)) -p longshore-manual
built = $$CARGO_TARGET_DIR/$(if $(filter dev,$(INSTALL_PROFILE)),debug,$(INSTALL_PROFILE))
install: ## build and install programs, units of systemd, man pages and completions; DESTDIR, PREFIX=/usr/local
	$(build_installed)
	@scripts/install.sh install "$(built)" "$(DESTDIR)" "$(PREFIX)"

uninstall: ## remove what make install has installed; clusters and their data stay (longshore reset removes them)
	@scripts/install.sh uninstall "$(built)" "$(DESTDIR)" "$(PREFIX)"

# Where packages and the book go.
OUT ?= $(CACHE)/packages
deb: ## build packages for Debian, and check them with lintian; OUT=directory, INSTALL_PROFILE=release
	@scripts/install-deps.sh deb
	$(build_installed)
	@packages=$$(scripts/package.sh deb "$(built)" "$(OUT)") && echo "$$packages" && \
	echo "$$packages" | xargs -d '\n' lintian --allow-root --fail-on=error,warning

tarball: ## pack programs, units and an installer for machines without dpkg; OUT=directory, INSTALL_PROFILE=release
	$(build_installed)
	@scripts/package.sh tarball "$(built)" "$(OUT)"

# As `uname -m` prints it.
ARCH ?= $(shell uname -m)
static_target = $(ARCH)-unknown-linux-musl
static_built = $$CARGO_TARGET_DIR/$(static_target)/$(notdir $(built))
# Rust brings musl; the C compiler is for the assembler code of the crate ring, and links for other architectures.
build_static = $(of_commit) env CC_$(ARCH)_unknown_linux_musl=$(ARCH)-linux-gnu-gcc \
	CARGO_TARGET_$(shell echo $(ARCH) | tr a-z A-Z)_UNKNOWN_LINUX_MUSL_LINKER=$(ARCH)-linux-gnu-gcc \
	cargo build --locked --profile $(INSTALL_PROFILE) --target $(static_target) --bins $(addprefix -p ,$(PROGRAMS)) -p longshore-manual
static: ## build programs that need no C library, and pack them; ARCH=x86_64 or aarch64, OUT=directory, INSTALL_PROFILE=release
	@scripts/install-deps.sh static $(ARCH)
	rustup target add $(static_target)
	$(build_static)
	@scripts/package.sh tarball "$(static_built)" "$(OUT)" $(ARCH)-linux-static

static-test: ## build static programs, run them in the root directories of Debian 11 to 13 and in an empty one, then as a cluster
	@scripts/install-deps.sh static $(ARCH)
	@scripts/install-deps.sh static-test
	rustup target add $(static_target)
	$(build_static) -p longshore-demo
	@scripts/static-test.sh "$(static_built)" $(CACHE)/roots

docs: ## make a book of docs/ with mdbook, which is installed when it is missing; OUT=directory
	@command -v mdbook >/dev/null || cargo install --locked mdbook --version '^0.5'
	mdbook build docs --dest-dir "$(abspath $(OUT))/book"

# One test more than there are CPUs: those on hosts wait for containers half of their time.
# With other programs than those of the PATH: CONTAINERD=FILE, with ctr and the shim beside it; KUBECTL=FILE; DOCKERD=FILE.
test: ## run all tests, or those of a filter of nextest (TESTS='test(dns)'); CONTAINERD, KUBECTL and DOCKERD choose the programs
	@scripts/install-deps.sh test
	cargo build --workspace --bins
	@chosen=$$(scripts/select-programs.sh $(CACHE)/programs "$(CONTAINERD)" "$(KUBECTL)" "$(DOCKERD)"); \
	PATH="$${chosen:+$$chosen:}$$PATH"; \
	kubectl=$$(scripts/fetch-kubectl.sh $(CACHE)/kubectl); PATH="$${kubectl:+$$kubectl:}$$PATH"; \
	for client in $$(scripts/fetch-clients.sh $(CACHE)/clients); do export "$$client"; done; \
	if command -v cargo-nextest >/dev/null; then cargo nextest run --workspace --test-threads $$(($$(nproc) + 1)) $(if $(TESTS),-E '$(TESTS)'); \
	else cargo test --workspace --no-fail-fast; fi

# What differs between runtimes: streams, collection of images and containers, statistics, devices of claims, CRI
# over Docker.
RUNTIME_TESTS ?= binary(node) & test(/^(streams|gc|pulls|stats|dra|docker|lifecycle)::/) | binary(engine)
SUITES ?= trixie sid
test-runtimes: ## run RUNTIME_TESTS on containerd and Docker of Debian's newer SUITES='trixie sid'
	@for suite in $(SUITES); do \
		programs=$(CACHE)/runtimes/$$suite; \
		scripts/fetch-packages.sh "$$programs" "$$suite" containerd docker.io; \
		echo "test-runtimes: $$("$$programs/usr/bin/containerd" --version); $$("$$programs/usr/sbin/dockerd" --version)"; \
		$(MAKE) test TESTS='$(RUNTIME_TESTS)' CONTAINERD="$$programs/usr/bin/containerd" DOCKERD="$$programs/usr/sbin/dockerd"; \
	done

CRITEST ?= $(shell command -v critest)
critest: ## run the suite of cri-tools on the CRI of Docker; CRITEST=its program, FOCUS and SKIP=specs, DOCKERD=another engine
	@[ -x "$(CRITEST)" ] || { echo "critest: no program critest in the PATH; CRITEST=FILE names that of cri-tools (docs/docker.md)"; exit 1; }
	@scripts/install-deps.sh test
	@chosen=$$(scripts/select-programs.sh $(CACHE)/programs "" "" "$(DOCKERD)"); \
	PATH="$${chosen:+$$chosen:}$$PATH" CRITEST="$(abspath $(CRITEST))" FOCUS='$(FOCUS)' SKIP='$(SKIP)' \
	cargo test --workspace --test engine -- --ignored --nocapture critest

test-unit: ## run the tests that need no root, container runtime or iptables
	@if command -v cargo-nextest >/dev/null; then cargo nextest run --profile unit --workspace --lib --bins; \
	else cargo test --workspace --lib --bins --no-fail-fast -- --skip as_root; fi

# Properties of all that reads what others send: logs, requests to either server, streams, tokens;
# and of all that computes with what objects, drivers and runtimes say.
FUZZ := chunks_make_no_difference nor_in_what_looks_like_a_log odd_requests_are_answered no_path_leads_out \
	node_logs_range_is_within_the_file node_logs_valid_queries_are_safe checkpoint_timeout_is_parsed \
	any_bytes_are_read_to_an_end no_line_is_too_odd nothing_makes_it_panic no_patch_panics extremes_of
fuzz: ## feed parsers of logs and requests with CASES=100000 inputs each
	PROPTEST_CASES=$(or $(CASES),100000) cargo test --workspace --lib -- $(FUZZ)

linearizability: ## check the answers that clients get while ROUNDS=20 servers and etcds are killed
	@scripts/install-deps.sh test
	LINEARIZABILITY_ROUNDS=$(or $(ROUNDS),20) cargo test -p longshore-apiserver --test apiserver -- linearizability:: --nocapture --test-threads=1

vm-test: ## run the cases that need cgroup v2 and systemd, in a virtual machine; VM_CASES=another list
	@scripts/install-deps.sh vm
	cargo build --workspace --bins
	@scripts/vm/image.sh "$(CACHE)/vm"
	@scripts/vm/test.sh "$(CACHE)/vm" "$$CARGO_TARGET_DIR/debug"

# Those of swap:: need upstream's programs.
MACHINES ?= $(if $(PEERS),,service::)
vm-machines: ## make virtual machines clusters, cut their power, swap kubelets (PEERS=folder of upstream's); MACHINES=filter of tests
	@scripts/install-deps.sh vm
	@scripts/install-deps.sh deb
	$(if $(PEERS),@scripts/fetch-packages.sh "$(CACHE)/docker" trixie docker.io docker-cli)
	cargo build --workspace --bins
	@scripts/vm/image.sh "$(CACHE)/vm"
	LONGSHORE_VM_IMAGE="$(CACHE)/vm" PEERS="$(abspath $(PEERS))" DOCKER="$(CACHE)/docker" \
	cargo test --workspace --test machines -- --ignored --nocapture --test-threads=1 $(MACHINES)

e2e-node: ## run upstream's node suite in the virtual machine; PEERS=folder of its programs, FOCUS=…, SKIP=…, COMPARE=0
	@[ -n "$(PEERS)" ] || { echo "e2e-node: PEERS names the folder with e2e_node.test, ginkgo and etcd: see docs/testing.md"; exit 1; }
	@scripts/install-deps.sh vm
	cargo build --profile $(PROFILE) --bins -p longshore
	@scripts/vm/image.sh "$(CACHE)/vm"
	@scripts/vm/node-suite.sh "$(CACHE)/vm" "$$CARGO_TARGET_DIR/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))" "$(PEERS)"

vm-bench: ## measure in the virtual machine how soon a node that runs short of memory acts
	@scripts/install-deps.sh vm
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-bench
	@scripts/vm/image.sh "$(CACHE)/vm"
	@VM_CASES=scripts/vm/bench scripts/vm/test.sh "$(CACHE)/vm" "$$CARGO_TARGET_DIR/release"

build: ## compile all programs and tests
	cargo build --workspace --all-targets

lint: style ## what style checks, and clippy
	cargo clippy --workspace --all-targets -- -D warnings

style: ## formatting, cycles between modules, licences and bans
	cargo fmt --all --check
	cargo run --quiet -p longshore-lints
	@if command -v cargo-deny >/dev/null; then cargo deny --all-features check; \
	else echo "cargo-deny is not installed: licences and bans were not checked"; fi

fmt: ## format the code
	cargo fmt --all

bench: ## measure a burst of N=100 pods; REPEAT=1 rounds, RUNTIME=docker, DEVICES=1 (of a plugin), JSON=file, KUBELET=another binary
	@scripts/install-deps.sh $(if $(filter docker,$(RUNTIME)),docker,run)
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-bench
	@$(if $(KUBELET),crates/bench/with-kubelet.sh "$(KUBELET)") "$$CARGO_TARGET_DIR/release/longshore-bench" \
	--pods=$(or $(N),100) --repeat=$(or $(REPEAT),1) $(if $(RUNTIME),--runtime="$(RUNTIME)") $(if $(filter-out 0,$(DEVICES)),--device-plugin) $(if $(JSON),--json="$(JSON)")

SIZES ?= 1000,4000,10000
bench-proxy: ## measure kube-proxy with SIZES=1000,4000,10000 services; REPEAT=5, JSON=file, KUBE_PROXY=another binary
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-bench
	@$(if $(KUBE_PROXY),crates/bench/with-kubelet.sh "$(KUBE_PROXY)") "$$CARGO_TARGET_DIR/release/longshore-bench" \
	--services="$(SIZES)" --repeat=$(or $(REPEAT),5) $(if $(JSON),--json="$(JSON)")

bench-server: ## measure the node's ports with N=110 pods: stats, scrapes, logs -f, a flood
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --server --pods=$(or $(N),110) $(if $(JSON),--json="$(JSON)")

bench-volumes: ## measure volumes: COUNT=1000 with data, idle and when a secret changes; fsGroup on FILES=200000 files beside chown -R
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --volumes=$(or $(COUNT),1000) --files=$(or $(FILES),200000) $(if $(JSON),--json="$(JSON)")

bench-api: ## measure the apiserver with N=4000 config maps, PODS=10000, 100 watchers; PEERS=folder of upstream's programs
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore-apiserver -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --config-maps=$(or $(N),4000) --stored-pods=$(or $(PODS),10000) \
	$(if $(PEERS),--peers="$(PEERS)") $(if $(JSON),--json="$(JSON)")

bench-cluster: ## measure the control plane: N=5000 pods on NODES=1000 simulated nodes; PEERS=folder of upstream's programs
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore-apiserver -p longshore-controllers -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --nodes=$(or $(NODES),1000) --bound-pods=$(or $(N),5000) \
	$(if $(PEERS),--peers="$(PEERS)") $(if $(JSON),--json="$(JSON)")

bench-deployment: ## measure how soon a deployment of N=10 replicas is ready; REPEAT=5 rounds
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --replicas=$(or $(N),10) --repeat=$(or $(REPEAT),5) $(if $(JSON),--json="$(JSON)")

bench-one-node: ## measure what a whole cluster of one node with N=20 pods uses that is idle; JSON=file
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-dns -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --one-node=$(or $(N),20) --idle=60 $(if $(JSON),--json="$(JSON)")

layout: ## write down which functions idle programs execute: the linker puts them next to each other (crates/layout)
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore -p longshore-apiserver -p longshore-controllers -p longshore-dns -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --one-node=20 --idle=90 --functions=crates/layout/idle.ld

bench-up: ## measure how soon `longshore up` makes a machine a cluster that is Ready; REPEAT=5 rounds
	@scripts/install-deps.sh run
	cargo build --release --bins -p longshore -p longshore-host -p longshore-apiserver -p longshore-controllers -p longshore-dns -p longshore-bench
	@"$$CARGO_TARGET_DIR/release/longshore-bench" --up --repeat=$(or $(REPEAT),5) $(if $(JSON),--json="$(JSON)")

bench-dns: ## measure the DNS server with N=200 services and COUNT=200000 questions
	cargo run --release -p longshore-dns --example bench -- --services=$(or $(N),200) --count=$(or $(COUNT),200000)

clean-host: ## remove what a killed run or test left on this machine
	@cargo run --quiet -p longshore-demo -- --sweep
