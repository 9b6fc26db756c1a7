# Foresay. `make` builds ./foresay; `make help` lists the targets.
#   CONFIG=release|debug|tsan|fuzz   debug: address + undefined sanitizers; tsan: thread sanitizer
#   CC=gcc|clang                     any C11 compiler
CONFIG ?= release
CC = cc
B := build/$(CONFIG)
ARCH := $(shell uname -m)
OS := $(shell uname -s)
VERSION := 0.1.0
PREFIX ?= /usr/local

# Homebrew keeps some libraries that macOS also has out of pkg-config's default path.
PKG_CONFIG := pkg-config
ifeq ($(OS),Darwin)
BREW := $(shell brew --prefix 2>/dev/null)
KEGS := $(foreach keg,libedit curl openssl@3,$(BREW)/opt/$(keg)/lib/pkgconfig:)
PKG_CONFIG := PKG_CONFIG_PATH="$(subst : ,:,$(KEGS))$$PKG_CONFIG_PATH" pkg-config
endif
PKGS := libpcre2-8 libutf8proc libxxhash libedit libcurl libcrypto
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PKGS))
# xxHash is used header-only
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(filter-out libxxhash,$(PKGS)))
TEST_CFLAGS = $(shell $(PKG_CONFIG) --cflags cmocka 2>/dev/null)
TEST_LIBS = $(shell $(PKG_CONFIG) --libs cmocka 2>/dev/null || echo -lcmocka)

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wundef -Wwrite-strings
# No contraction and no value-changing maths in any object: docs/arithmetic.md fixes every rounding.
FP := -ffp-contract=off -fno-fast-math
CFLAGS_release := -O2 -g
CFLAGS_debug := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS_tsan := -O1 -g -fsanitize=thread
CFLAGS_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
LDFLAGS_debug := -fsanitize=address,undefined
LDFLAGS_tsan := -fsanitize=thread
LDFLAGS_fuzz := -fsanitize=address,undefined
ALL_CFLAGS = -std=c11 -D_POSIX_C_SOURCE=200809L -DFORESAY_VERSION='"$(VERSION)"' -Isrc -Iinclude $(WARN) $(FP) \
             $(CFLAGS_$(CONFIG)) $(PKG_CFLAGS) -MMD -MP $(EXTRA_CFLAGS) $(CFLAGS)
ALL_LDFLAGS = $(LDFLAGS_$(CONFIG)) $(LDFLAGS)
LIBS := $(PKG_LIBS) -lpthread -lm

SRC := $(filter-out src/kernel/cpu/isa_%,$(wildcard src/*/*.c src/*/*/*.c))
ISA := src/kernel/cpu/isa_scalar.c
ifneq ($(filter x86_64 amd64,$(ARCH)),)
ISA += src/kernel/cpu/isa_avx2.c
endif
LIB_SRC := $(filter-out src/cli/%,$(SRC)) $(ISA)
CLI_SRC := $(filter src/cli/%,$(SRC))
obj = $(patsubst %.c,$(B)/%.o,$(1))
TESTS := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/*/test_*.c))
TOOLS := $(patsubst tools/%.c,$(B)/tools/%,$(wildcard tools/*.c))
FUZZ := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60

.PHONY: all help lib tests test check-style fuzz fuzz-smoke install clean
all: $(B)/foresay
	@ln -sf $(B)/foresay foresay

help:
	@echo "make              build ./foresay (CONFIG=debug: sanitizers, CONFIG=tsan: thread sanitizer)"
	@echo "make test         build and run the tests of this checkout; ./test does more and installs what it needs"
	@echo "make check-style  layers, headers, sizes, banned functions"
	@echo "make fuzz         build the fuzz targets (clang); fuzz-smoke also runs each for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make install      into PREFIX=$(PREFIX) (DESTDIR is honoured)"
	@echo "make clean        remove build/"

$(B)/src/kernel/cpu/isa_avx2.o: ALL_CFLAGS += -mavx2 -mfma -mf16c
# Speed matters in kernel objects even when the rest is built for debugging. But with its lanes spelled out one by
# one, the scalar build takes an optimizing gcc with sanitizers many minutes.
$(B)/src/kernel/cpu/%.o: CFLAGS_debug += -O2
$(B)/src/kernel/cpu/isa_scalar.o: CFLAGS_debug += -O0
# No fuzz target multiplies; instrumented, the kernels take clang a quarter of an hour.
$(B)/src/kernel/cpu/isa_%.o: CFLAGS_fuzz := -O1
$(B)/src/kernel/cpu/%.o: CFLAGS_release += -O3
$(B)/tests/%.o: ALL_CFLAGS += $(TEST_CFLAGS)

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

# Nothing is linked while an include crosses a layer.
LAYERS := build/layers.ok
$(LAYERS): tools/check-layers $(wildcard src/*/*.[ch] src/*/*/*.[ch] src/*/*/*.inc)
	@mkdir -p $(@D)
	@tools/check-layers
	@touch $@

$(B)/libforesay.a: $(call obj,$(LIB_SRC)) | $(LAYERS)
	@rm -f $@
	$(AR) rcs $@ $^
lib: $(B)/libforesay.a

$(B)/foresay: $(call obj,$(CLI_SRC)) $(B)/libforesay.a $(LAYERS)
	$(CC) $(ALL_LDFLAGS) $(filter-out $(LAYERS),$^) $(LIBS) -o $@

# readers of the demo model's eval.json
$(B)/tests/property/identity $(B)/tests/property/test_identity $(B)/tests/property/test_eval: $(B)/tests/property/eval_file.o

$(B)/tests/%: $(B)/tests/%.o $(B)/libforesay.a
	$(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) $(LIBS) $(TEST_LIBS) -o $@
$(B)/tools/%: $(B)/tools/%.o $(B)/libforesay.a
	$(CC) $(ALL_LDFLAGS) $^ $(LIBS) -o $@
$(B)/bench/%: $(B)/bench/%.o $(B)/libforesay.a
	$(CC) $(ALL_LDFLAGS) $^ $(LIBS) -o $@
tests: $(TESTS) $(TOOLS)

$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(B)/libforesay.a
	@mkdir -p $(@D)
	$(CC) -fsanitize=fuzzer $(ALL_LDFLAGS) $^ $(LIBS) -o $@
ifeq ($(CONFIG),fuzz)
fuzz: $(FUZZ)
else
fuzz:
	$(MAKE) CONFIG=fuzz CC=clang fuzz
endif
fuzz-smoke:
	tests/run.py --only-fuzz --fuzz $(FUZZ_SECONDS)

test:
	tests/run.py --quick

check-style: $(LAYERS)
	CC="$(CC)" CPPFLAGS="$(PKG_CFLAGS)" tools/check-style

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/foresay/models/demo
	install -d $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include
	install -m 755 $(B)/foresay $(DESTDIR)$(PREFIX)/bin/foresay
	install -m 644 $(B)/libforesay.a $(DESTDIR)$(PREFIX)/lib/libforesay.a
	install -m 644 include/foresay.h $(DESTDIR)$(PREFIX)/include/foresay.h
	install -m 644 models/demo/* $(DESTDIR)$(PREFIX)/share/foresay/models/demo

clean:
	rm -rf build foresay

include tests/guard.mk

.SECONDARY:
-include $(wildcard $(B)/src/*/*.d $(B)/src/*/*/*.d $(B)/tests/*/*.d $(B)/tools/*.d $(B)/bench/*.d)
