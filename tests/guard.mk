# The guard: the schedule fuzzer, its models, and the faults it must catch.
#   make fuzz-schedule   fresh seeds for FUZZ_HOURS hours, or until a difference
#   make mutation        plants each fault of tests/mutation and demands that the fuzzer sees it
GUARD := $(B)/tests/property
GUARD_MODELS := build/models/tiny build/models/thin-0.8B build/models/thin-27B build/models/window-100 build/models/window-1000
FUZZ_HOURS ?= 1

$(GUARD)/schedule $(GUARD)/test_schedule: %: %.o $(B)/libforesay.a
	$(CC) $(ALL_LDFLAGS) $^ $(LIBS) -o $@
$(GUARD)/test_schedule: | guard-models
$(GUARD)/test_denormal: | build/models/tiny/config.json

# True widths, small vocabularies. thin-27B has one layer of each kind: half a gigabyte. config.json is written last.
build/models/tiny/config.json: MODEL := tiny mlx4 build/models/tiny
build/models/thin-0.8B/config.json: MODEL := thin-0.8B mlx4 build/models/thin-0.8B --vocab 2048
build/models/thin-27B/config.json: MODEL := thin-27B mlx4 build/models/thin-27B --vocab 2048 --layers 2
$(filter-out build/models/window-%,$(GUARD_MODELS:=/config.json)): | $(B)/tools/mkmodel
	@mkdir -p build/models
	$(B)/tools/mkmodel $(MODEL)

# A golden model of a window on every layer, with windows that are no multiple of a page.
build/models/window-%/config.json: tests/golden/models/mistral/config.json
	@mkdir -p $(@D)
	cp $(<D)/model.safetensors $(@D)
	sed 's/"sliding_window": [0-9]*/"sliding_window": $*/' $< >$@

.PHONY: guard-models fuzz-schedule mutation
guard-models: $(GUARD_MODELS:=/config.json)

# Long texts on the small models, shorter ones where a row costs more.
fuzz-schedule: $(GUARD)/schedule guard-models
	tests/fuzz-schedule.sh $(GUARD)/schedule $(FUZZ_HOURS)

mutation:
	tests/mutation/run.sh
