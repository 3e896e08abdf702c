# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
#   make demo      installs what is missing, builds, and runs STREAM in 30 % of its memory next to kernel swap
#   make test      every check and every test
#   make sanitise  the C programs of the tests with AddressSanitizer and UndefinedBehaviorSanitizer
#   make build     the product: aquifer and its preload library
#   make bench     what `aquifer bench` starts: the bench and its workloads
#   make agent     what `aquifer agent` starts, and the device plug-in for Kubernetes
#   make cache     what `aquifer cache` starts
#   make fabric    the fabric manager, its command line, and the pool as a CXL switch: aquifer-fabricd, aquifer-fabric,
#                  aquifer-pool-switchd
#   make console   the fabric manager's page for browsers, into target/console; needs Node.js 20.19 or newer with npm
#   make fmapi     what `aquifer fmapi` starts
#   make metrics   what `aquifer metrics` and `aquifer donor --metrics` start: the HTTP server
#   make c         the library for programs in C and C++: libaquifer.so and libaquifer.a
#   make stress    what `aquifer stress` starts
#   make python    the wheel of the Python package, into target/wheels; needs maturin
#   make install   all of these but the wheel, and the console if it was built: PREFIX=/usr/local DESTDIR=
#   make deb       Debian packages of the same, into target/packages; needs debhelper
#
# Everything that is more than one command is in crates/xtask.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
RELEASE := $(TARGET)/release
# The directory from which `make install-built` takes programs and libraries.
BUILT ?= $(RELEASE)
# The directory for the C library; Debian has one for each architecture.
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# The program that `aquifer stress` runs, as crates/lab/e2e/src/build.rs compiles it.
TORTURE_FLAGS := -O1 -g -std=gnu11 -pthread
# What `make demo` passes on, such as DEMO_ARGS="--workload bfs".
DEMO_ARGS ?=

# Words of this command line are not for the makefiles of the libraries that cargo builds: with DESTDIR, jemalloc's
# installed itself there, and was not found.
MAKEOVERRIDES =
unexport DESTDIR PREFIX

# A toolchain that .ci/setup has just installed is not in this shell's PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

build:
	$(CARGO) build --release --package aquifer-cli --package aquifer-preload

# The programs that the command starts. `aquifer run` needs none of them, so `make build` builds none of their libraries.
bench:
	$(CARGO) build --release --package aquifer-bench --package aquifer-sim --package aquifer-workloads
	$(MAKE) --no-print-directory -C bench/workloads OUT=$(TARGET)/workloads

agent:
	$(CARGO) build --release --package aquifer-agent --package aquifer-device-plugin

cache:
	$(CARGO) build --release --package aquifer-cache

fabric:
	$(CARGO) build --release --package aquifer-manager --package aquifer-fabric-cli --package aquifer-pool-switchd

# `npm ci` installs what the lock file lists, and nothing that has another hash.
console:
	cd crates/pool/console && npm ci && npm run build -- --outDir $(TARGET)/console

fmapi:
	$(CARGO) build --release --package aquifer-fmapi-cli

metrics:
	$(CARGO) build --release --package aquifer-metrics

c:
	$(CARGO) build --release --package aquifer-c
	$(MAKE) --no-print-directory -C crates/fronts/c ARCHIVE=$(RELEASE)/libaquifer_c.a OUT=$(RELEASE)

python:
	maturin build --release --auditwheel skip --manifest-path crates/fronts/python/Cargo.toml --out $(TARGET)/wheels

stress:
	$(CARGO) build --release --package aquifer-e2e --bin aquifer-stress
	$(CC) $(TORTURE_FLAGS) -o $(RELEASE)/aquifer-torture crates/lab/e2e/torture/*.c

demo:
	bash .ci/setup
	$(MAKE) --no-print-directory build bench
	$(RELEASE)/aquifer bench --quick --programs $(TARGET)/workloads $(DEMO_ARGS)

test:
	$(CARGO) xtask ci

# The Rust code is not instrumented; docs/testing.md says what this covers. `make test` does it, too.
sanitise:
	$(CARGO) test --package aquifer-c --test abi sanitised

# The command looks for the library beside itself, and then in ../lib/aquifer; for the programs that it starts beside
# itself, and then in ../libexec/aquifer.
install: build agent bench c cache fabric fmapi metrics stress
	$(MAKE) --no-print-directory install-built DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) LIBDIR=$(LIBDIR)

install-built:
	install -D -m 0755 $(BUILT)/aquifer $(DESTDIR)$(PREFIX)/bin/aquifer
	install -D -m 0755 $(BUILT)/libaquifer_preload.so $(DESTDIR)$(PREFIX)/lib/aquifer/libaquifer_preload.so
	install -D -m 0755 $(BUILT)/aquifer-bench $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-bench
	install -D -m 0755 $(BUILT)/aquifer-sim $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-sim
	install -D -m 0755 $(BUILT)/aquifer-workloads $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-workloads
	install -D -m 0755 $(BUILT)/aquifer-agentd $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-agentd
	install -D -m 0755 $(BUILT)/aquifer-device-plugin $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-device-plugin
	install -D -m 0755 $(BUILT)/aquifer-cache $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-cache
	install -D -m 0755 $(BUILT)/aquifer-fabric $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-fabric
	install -D -m 0755 $(BUILT)/aquifer-fabricd $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-fabricd
	install -D -m 0755 $(BUILT)/aquifer-pool-switchd $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-pool-switchd
	@if [ -f $(TARGET)/console/index.html ]; then \
	  console=$(DESTDIR)$(PREFIX)/share/aquifer/console && rm -rf $$console && install -d $$console/assets && \
	  install -m 0644 $(TARGET)/console/assets/* $$console/assets && \
	  install -m 0644 $(TARGET)/console/*.* $$console; \
	else echo "the fabric manager's console is not installed: it was not built; run 'make console' first"; fi
	install -D -m 0755 $(BUILT)/aquifer-fmapi $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-fmapi
	install -D -m 0755 $(BUILT)/aquifer-metrics $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-metrics
	install -D -m 0755 $(BUILT)/aquifer-stress $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-stress
	install -D -m 0755 $(BUILT)/aquifer-torture $(DESTDIR)$(PREFIX)/libexec/aquifer/aquifer-torture
	install -D -m 0755 $(BUILT)/libaquifer.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libaquifer.so.$(VERSION)
	ln -sf libaquifer.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libaquifer.so.0
	ln -sf libaquifer.so.0 $(DESTDIR)$(LIBDIR)/libaquifer.so
	install -D -m 0644 $(BUILT)/libaquifer.a $(DESTDIR)$(LIBDIR)/libaquifer.a
	install -D -m 0644 crates/fronts/c/include/aquifer.h $(DESTDIR)$(PREFIX)/include/aquifer.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man3
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' crates/fronts/c/aquifer.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/aquifer.pc
	$(CARGO) xtask man3 --dir $(DESTDIR)$(PREFIX)/share/man/man3
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(BUILT)/aquifer man --dir $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in aquifer-agent aquifer-donor aquifer-fabricd aquifer-metrics aquifer-pool-switchd aquifer@; do \
	  sed "s|/usr/local/|$(PREFIX)/|" packaging/$$unit.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit.service || exit 1; \
	done
	install -D -m 0644 packaging/aquifer-agent-cxl.conf $(DESTDIR)$(PREFIX)/share/aquifer/aquifer-agent-cxl.conf
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	install -d $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(BUILT)/aquifer completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/aquifer
	$(BUILT)/aquifer completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_aquifer
	$(BUILT)/aquifer completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/aquifer.fish

# The Debian packages install the same files through this target.
deb: build agent bench c cache fabric fmapi metrics stress
	$(CARGO) xtask deb --binaries $(RELEASE)

clean:
	$(CARGO) clean

.PHONY: build agent bench c cache console fabric fmapi metrics python stress demo test sanitise install install-built deb clean
.DEFAULT_GOAL := build
